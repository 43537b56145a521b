"""fedstale: federated learning with devices that show up unevenly.

The names a user needs; everything beyond NumPy is imported only when it is asked for.
"""

from __future__ import annotations

from . import beta, memory, participation, randomness, rules, theory
from ._version import __version__
from .checks import InvalidInput
from .federation import Federation, Round
from .rules import FedAvg, FedStale, FedVARP, Rule, UnbiasedFedAvg, UnbiasedFedVARP
from .state import State

__all__ = [
    "FedAvg",
    "FedStale",
    "FedVARP",
    "Federation",
    "InvalidInput",
    "Round",
    "Rule",
    "State",
    "UnbiasedFedAvg",
    "UnbiasedFedVARP",
    "__version__",
    "beta",
    "memory",
    "participation",
    "randomness",
    "rules",
    "theory",
]
