"""AFA-CD: anarchic federated averaging for cross-device federations.

Yang, Zhang, Khanduri & Liu, Anarchic federated learning, ICML 2022.

    client i, whenever it likes: K_i local steps from the model w_{t−τ_i} that it fetched τ_i rounds ago
    Δ = (K̄/|S|) Σ_S Δ_i / K_i,   Δ_i = w_{t−τ_i} − w_i

The paper normalises by η_c K_i and has one server rate; K̄, a typical number of steps, keeps Δ on the scale of an
update. The delays are a simulation: τ_i is drawn from (seed, round, client), and the older models that clients hold are
kept in the state to train from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..checks import Float, fail, number, positive_int
from ..federation import CheckedRound, Ints
from ..memory.kernel import weighted_sum
from ..randomness import generator
from ..state import State
from .averaging import round_weights
from .base import Local, Rule, refuse_non_finite


@dataclass(frozen=True, kw_only=True)
class AFACD(Rule):
    """The mean over the round's arrivals, each normalised by its number of local steps.

    Parameters
    ----------
    max_delay
        τ_i is uniform in 0 … max_delay; 0 is no delay.
    local_steps
        K̄; default: the mean over all arrivals so far.
    seed
        Decides the delays.
    """

    max_delay: int = 5
    local_steps: float | None = None
    seed: int = 0

    name: ClassVar[str] = "afa-cd"
    held_by_clients: ClassVar[tuple[str, ...]] = ("models",)
    caveat: ClassVar[str] = "has no error floor only when every client is equally likely to arrive"

    def __post_init__(self) -> None:
        super().__post_init__()
        positive_int("max_delay", self.max_delay, 0)
        positive_int("seed", self.seed, 0)
        if self.local_steps is not None:
            number("local_steps", self.local_steps, 0.0, open_low=True)

    def start(self, state: State) -> None:
        """Room for the models that may still be in somebody's hands."""
        state.scalars |= {"models": 0.0, "steps/sum": 0.0, "steps/count": 0.0}
        if state.model is not None and self.max_delay:
            state.extras["models"] = np.zeros((self.max_delay, len(state.model)), dtype=state.model.dtype)

    def delays(self, state: State, clients: Ints) -> Ints:
        """τ_i of the coming round's participants, at most as many rounds as there were."""
        most = min(self.max_delay, int(state.scalars["models"]))
        draws = [int(generator(self.seed, "delay", state.round, int(i)).integers(most + 1)) for i in clients]
        return np.array(draws, dtype=np.int64)

    def local(self, state: State, clients: Ints) -> Local | None:
        """Start from the models of τ_i rounds ago."""
        if not self.max_delay or not state.scalars["models"] or not len(clients):
            return None
        if state.model is None:
            raise fail("model", None, "give init(..., model=w): delayed clients train from older models")
        delays = self.delays(state, clients)
        places = (int(state.scalars["models"]) - delays) % self.max_delay
        starts = state.extras["models"][places]
        starts[delays == 0] = state.model
        return Local(start=starts)

    def update(self, state: State, round: CheckedRound) -> Float:
        """Average the arrivals per local step."""
        scale = self._scale(state, round)
        weights = round_weights(round) * scale / self._steps(round)
        delta = weighted_sum(round.rows, weights, state.federation.num_params)
        refuse_non_finite(round, delta)
        self._arrived(state, round)
        return delta

    def _steps(self, round: CheckedRound) -> Float:
        return np.ones(round.size) if round.steps is None else round.steps

    def _scale(self, state: State, round: CheckedRound) -> float:
        """K̄, with the present arrivals."""
        if self.local_steps is not None:
            return self.local_steps if round.steps is not None else 1.0
        count = state.scalars["steps/count"] + round.size
        return (state.scalars["steps/sum"] + float(self._steps(round).sum())) / count if count else 1.0

    def _arrived(self, state: State, round: CheckedRound) -> None:
        """Count the arrivals' steps, and keep w_t for those who fetch it now and arrive later."""
        state.scalars["steps/sum"] += float(self._steps(round).sum())
        state.scalars["steps/count"] += float(round.size)
        if state.model is not None and self.max_delay:
            state.extras["models"][int(state.scalars["models"]) % self.max_delay] = state.model
            state.scalars["models"] += 1.0
