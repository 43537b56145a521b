"""The round loop: simulations that can be stepped, killed and resumed."""

from .build import build
from .callbacks import EarlyStop, MLflow, StoreRun, TensorBoard
from .comparison import Comparison, Method, compare
from .history import Record
from .loop import Callback, EvaluationMetrics, Simulation, Trainer
from .run import Result, result, resume, simulate
from .settings import Settings, from_toml, make_settings, to_toml
from .stored import LostRounds

__all__ = [
    "Callback",
    "Comparison",
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
    "Trainer",
    "build",
    "compare",
    "from_toml",
    "make_settings",
    "result",
    "resume",
    "simulate",
    "to_toml",
]
