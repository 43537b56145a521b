"""fedstale: federated learning with devices that show up unevenly.

The names a user needs; everything beyond NumPy is imported only when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import beta, memory, participation, randomness, rules, theory, theta
from ._lazy import lazy
from ._version import __version__
from .checks import InvalidInput
from .federation import Federation, Round
from .participation import Bernoulli, FedAUEstimator
from .rules import FedAvg, FedStale, FedVARP, Rule, TemperedFedStale, UnbiasedFedAvg, UnbiasedFedVARP
from .state import State

if TYPE_CHECKING:
    from . import analysis, simulation, store, sweeps, tasks, training
    from .simulation import Simulation, compare, resume, simulate
    from .tasks import Task

__all__ = [
    "Bernoulli",
    "FedAUEstimator",
    "FedAvg",
    "FedStale",
    "FedVARP",
    "Federation",
    "InvalidInput",
    "Round",
    "Rule",
    "Simulation",
    "State",
    "Task",
    "TemperedFedStale",
    "UnbiasedFedAvg",
    "UnbiasedFedVARP",
    "__version__",
    "analysis",
    "beta",
    "compare",
    "memory",
    "participation",
    "randomness",
    "resume",
    "rules",
    "simulate",
    "simulation",
    "store",
    "sweeps",
    "tasks",
    "theory",
    "theta",
    "training",
]

# These bring pydantic, SQLite, and torch for tasks with data.
__getattr__, __dir__ = lazy(
    __name__,
    {
        **dict.fromkeys(("Simulation", "compare", "resume", "simulate"), "simulation"),
        "Task": "tasks",
        **{package: package for package in ("analysis", "simulation", "store", "sweeps", "tasks", "training")},
    },
)
