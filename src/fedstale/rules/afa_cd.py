"""AFA-CD: anarchic federated averaging for cross-device federations.

Yang, Zhang, Khanduri & Liu, Anarchic federated learning, ICML 2022.

    client i, whenever it likes: K_i local steps from the model w_{t−τ_i} that it fetched τ_i rounds ago
    Δ = (K̄/|S|) Σ_S Δ_i / K_i,   Δ_i = w_{t−τ_i} − w_i

The paper normalises by η_c K_i and has one server rate; K̄, a typical number of steps, keeps Δ on the scale of an
update. Delays come from the clock of a simulation in time (fedstale.clock). In one that counts rounds they are drawn:
τ_i from (seed, round, client), and the older models that clients hold are kept in the state to train from.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..checks import Float, fail, number, positive_int
from ..federation import CheckedRound, Ints
from ..memory.kernel import weighted_sum
from ..randomness import generator
from ..rule_state import RuleState, held_by_clients
from ..state import State
from .averaging import round_weights
from .base import Local, Rule, refuse_non_finite


@dataclass(eq=False, kw_only=True)
class ArrivalState(RuleState):
    """What AFA-CD remembers."""

    models: NDArray[Any] | None = held_by_clients()
    """the last `max_delay` models, which clients may still hold, shape (max_delay, d)"""
    num_models: int = 0
    """how many models there were so far"""
    steps: float = 0.0
    """local steps of all arrivals so far"""
    arrivals: int = 0


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
    caveat: ClassVar[str] = "converges without an error floor only if all clients are equally likely to arrive"

    def __post_init__(self) -> None:
        super().__post_init__()
        positive_int("max_delay", self.max_delay, 0)
        positive_int("seed", self.seed, 0)
        if self.local_steps is not None:
            number("local_steps", self.local_steps, 0.0, open_low=True)

    def on_clock(self) -> AFACD:
        """Without delays of its own: on a clock, how old a client's model is follows from how long it worked."""
        return replace(self, max_delay=0)

    def start(self, state: State) -> RuleState:
        """Nobody has arrived."""
        return ArrivalState(models=self._models(state))

    def _models(self, state: State) -> NDArray[Any] | None:
        """Room for the models that clients may still hold."""
        if state.model is None or not self.max_delay:
            return None
        return np.zeros((self.max_delay, len(state.model)), dtype=state.model.dtype)

    def delays(self, state: State, clients: Ints) -> Ints:
        """τ_i of the coming round's participants, at most as many rounds as there were."""
        most = min(self.max_delay, state.own(ArrivalState).num_models)
        draws = [int(generator(self.seed, "delay", state.round, int(i)).integers(most + 1)) for i in clients]
        return np.array(draws, dtype=np.int64)

    def local(self, state: State, clients: Ints) -> Local | None:
        """Start from the models of τ_i rounds ago."""
        own = state.own(ArrivalState)
        if not self.max_delay or not own.num_models or not len(clients):
            return None
        if state.model is None or own.models is None:
            raise fail("model", None, "delayed clients train from older models: pass model=w to init")
        delays = self.delays(state, clients)
        starts = own.models[(own.num_models - delays) % self.max_delay]
        starts[delays == 0] = state.model
        return Local(start=starts)

    def update(self, state: State, round: CheckedRound) -> Float:
        """Average the arrivals per local step."""
        scale = self._scale(state, round)
        weights = round_weights(round) * scale / self._steps(round)
        delta = weighted_sum(round.updates, weights, state.federation.num_params)
        refuse_non_finite(round, delta)
        self._arrived(state, round)
        return delta

    def _steps(self, round: CheckedRound) -> Float:
        return np.ones(round.size) if round.steps is None else round.steps

    def _scale(self, state: State, round: CheckedRound) -> float:
        """K̄, with the present arrivals."""
        if self.local_steps is not None:
            return self.local_steps if round.steps is not None else 1.0
        own = state.own(ArrivalState)
        count = own.arrivals + round.size
        return (own.steps + float(self._steps(round).sum())) / count if count else 1.0

    def _arrived(self, state: State, round: CheckedRound) -> None:
        """Count the arrivals' steps, and keep w_t for those who fetch it now and arrive later."""
        own = state.own(ArrivalState)
        own.steps += float(self._steps(round).sum())
        own.arrivals += round.size
        if state.model is not None and own.models is not None:
            own.models[own.num_models % self.max_delay] = state.model
            own.num_models += 1
