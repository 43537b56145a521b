"""What a simulation asks of others: a trainer that learns and evaluates, and callbacks for everything else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

from ..checks import Float
from ..federation import Ints
from ..rules import Local
from .history import Metrics, Record

if TYPE_CHECKING:
    from .loop import Simulation


@dataclass(frozen=True, eq=False)
class EvaluationMetrics:
    """The result of an evaluation: metrics such as accuracy and loss, and each client's accuracy (or None)."""

    metrics: Metrics
    per_client: Float | None = None


class Trainer(Protocol):
    """Local training and evaluation: an engine on a task, or anything that behaves like one."""

    @property
    def num_params(self) -> int:
        """Number of parameters d."""

    def initial(self) -> NDArray[Any]:
        """w_1, shape (d,)."""

    def updates(self, model: NDArray[Any], clients: Ints, round: int, local: Local | None = None) -> NDArray[Any]:
        """Δ_i = w_t − w_i of the clients, shape (|S|, d), trained as `local` says."""

    def steps_and_lr(self, clients: Ints, round: int) -> tuple[Float, float]:
        """Numbers of local steps K_i of the clients, shape (|S|,), and η_c."""

    def evaluate(self, model: NDArray[Any]) -> EvaluationMetrics:
        """How good the model is over all clients' test data."""


class Callback:
    """Base class of callbacks. Every hook does nothing unless it is overridden."""

    def on_start(self, simulation: Simulation) -> None:
        """Before the first round of this call of `run`."""

    def on_round(self, simulation: Simulation, record: Record) -> None:
        """After every round."""

    def on_end(self, simulation: Simulation, reason: str) -> None:
        """After the last round: "finished", "stopped", "diverged", "interrupted" or "failed"."""

    def resume_hint(self) -> str:
        """How to resume the run; added to the error when a problem with a file ends it."""
        return ""
