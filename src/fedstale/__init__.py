"""fedstale: federated learning with devices that show up unevenly.

The names a user needs; everything beyond NumPy is imported only when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import beta, memory, participation, randomness, rules, theory
from ._version import __version__
from .checks import InvalidInput
from .federation import Federation, Round
from .participation import Bernoulli, FedAU
from .rules import FedAvg, FedStale, FedVARP, Rule, UnbiasedFedAvg, UnbiasedFedVARP
from .state import State

if TYPE_CHECKING:
    from .simulation import Simulation, resume, simulate

__all__ = [
    "Bernoulli",
    "FedAU",
    "FedAvg",
    "FedStale",
    "FedVARP",
    "Federation",
    "InvalidInput",
    "Round",
    "Rule",
    "Simulation",
    "State",
    "UnbiasedFedAvg",
    "UnbiasedFedVARP",
    "__version__",
    "beta",
    "memory",
    "participation",
    "randomness",
    "resume",
    "rules",
    "simulate",
    "theory",
]


def __getattr__(name: str) -> Any:
    if name in ("Simulation", "resume", "simulate"):  # these bring pydantic, and torch for tasks with data
        from . import simulation

        return getattr(simulation, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
