"""The round loop: simulations that can be stepped, killed and resumed."""

from .build import build
from .callbacks import EarlyStop, MLflow, StoreRun, TensorBoard
from .comparing import compare, compare_settings
from .comparison import Comparison
from .coverage import CoverageLost
from .history import Record
from .interfaces import Callback, EvaluationMetrics, Trainer
from .loop import Simulation
from .methods import Method
from .run import Result, result, resume, simulate
from .settings import Settings, make_settings
from .settings_file import from_toml, to_toml
from .stored import LostRounds
from .timed import TimedSimulation
from .timeline import Timeline

__all__ = [
    "Callback",
    "Comparison",
    "CoverageLost",
    "EarlyStop",
    "EvaluationMetrics",
    "LostRounds",
    "MLflow",
    "Method",
    "Record",
    "Result",
    "Settings",
    "Simulation",
    "StoreRun",
    "TensorBoard",
    "TimedSimulation",
    "Timeline",
    "Trainer",
    "build",
    "compare",
    "compare_settings",
    "from_toml",
    "make_settings",
    "result",
    "resume",
    "simulate",
    "to_toml",
]
