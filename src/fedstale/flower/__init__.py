"""Strategies for Flower's message API: change one import, and the rare devices are served.

from fedstale.flower import TemperedFedStale    # instead of: from flwr.serverapp.strategy import FedAvg

strategy = TemperedFedStale(fraction_train=0.5)
result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=10)

Clients stay as they are where SuperNodes have keys registered with a name; otherwise a reply must say whose it is, in
one line: `ClientApp(mods=[fedstale.flower.identity_mod])`.
"""

from __future__ import annotations

try:
    import flwr as _flwr  # noqa: F401
except ModuleNotFoundError as error:
    from ..extras import explained

    raise explained(error) from error

from .identity import Identity, identity_mod
from .loop import NobodyAnswered
from .memory_mod import memory_mod
from .strategies import FedStale, TemperedFedStale, UnbiasedFedAvg, UnbiasedFedVARP
from .strategy import RuleStrategy

__all__ = [
    "FedStale",
    "Identity",
    "NobodyAnswered",
    "RuleStrategy",
    "TemperedFedStale",
    "UnbiasedFedAvg",
    "UnbiasedFedVARP",
    "identity_mod",
    "memory_mod",
]
