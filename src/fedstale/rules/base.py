"""What a rule is: the paper's ComputeUpdate (Algorithm 1), a round's updates in, one global update out.

A rule is a frozen dataclass of hyper-parameters. All that it remembers is in the `State` it is handed: declared as a
`RuleState`, made in `start` and found in `state.of_rule`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..checks import Float, NonFinite, fail, number
from ..difference import Difference
from ..federation import CheckedRound, Federation, Ints, Round, all_finite, cast_like, check_round
from ..memory.held import NAME as CLIENTS
from ..memory.held import Announcement
from ..rule_state import MemoryState, RuleState
from ..state import State
from .coverage import warn_if_uncovered

if TYPE_CHECKING:
    from ..participation import Selection

_PIECE = 1 << 16
"""Numbers of a model that are moved together."""


@dataclass(frozen=True)
class Local:
    """How a rule changes local training in a round: gradients become ∇F_i(w) + linear_i + prox (w − start_i).

    Attributes
    ----------
    linear
        One vector per participant, shape (|S|, d), such as SCAFFOLD's c − c_i.
    prox
        The weight of the proximal term, as in FedProx.
    start
        The model that training starts from instead of w_t, shape (d,), or one per participant, shape (|S|, d).
    gradient
        One step on all samples of the round instead of K steps: Δ_i is then η_c times the gradient at the start.
    recursive
        Steps go along g_0 = linear_i and g_k = g_{k−1} + ∇f_i(w_k; B_k) − ∇f_i(w_{k−1}; B_k) instead of gradients.
    """

    linear: Float | None = None
    prox: float = 0.0
    start: NDArray[Any] | None = None
    gradient: bool = False
    recursive: bool = False


@dataclass(frozen=True, kw_only=True)
class Rule(ABC):
    """Turns a round's updates into one global update.

    Parameters
    ----------
    server_lr
        η_s of Algorithm 1, used by `step`: w ← w − η_s Δ.
    """

    server_lr: float = 1.0

    name: ClassVar[str]
    """The name in configs and on the command line."""
    memory: ClassVar[bool] = False
    """Whether the rule keeps one row per client on the server."""
    per_step: ClassVar[bool] = False
    """Whether these rows are updates per local step."""
    takes_late: ClassVar[bool] = False
    """Whether an update that comes after its round has a place in the memory (`remember_late`)."""
    reads_once: ClassVar[bool] = False
    """Whether `update` and `remember_late` hand the updates to a memory, and may be given a `Difference` for each."""
    asynchronous: ClassVar[bool] = True
    """Whether it may be given updates that were computed from older models: those of an asynchronous server."""
    answers_with_model: ClassVar[bool] = False
    """Whether clients send w_i, so that Δ_i = w_t − w_i with the model of the step, not the one they began with."""
    unbiased: ClassVar[bool] = False
    """Whether E[Δ] = Σ α_i Δ_i whatever the p_i are."""
    upload: ClassVar[int] = 1
    download: ClassVar[int] = 1
    """Vectors of length d that a participant sends and receives in a round."""
    client_memory: ClassVar[int] = 0
    """Vectors of length d that a client keeps between its participations."""
    caveat: ClassVar[str] = ""
    """What happens when the p_i differ, for a rule whose paper does not cover that or that is biased then."""

    def __post_init__(self) -> None:
        number("server_lr", self.server_lr, 0.0, open_low=True)

    def init(self, federation: Federation, *, memory: str = "ram", model: Any = None) -> State:
        """Make the state of round 0.

        Parameters
        ----------
        federation
            Who the clients are.
        memory
            Where rows live, if the rule keeps any: "ram", "ram:bfloat16", "disk:FOLDER", …
        model
            w_1, shape (d,), when `step` is to be used.
        """
        state = State(federation, self.name, where=memory)
        if model is not None:
            state.model = np.array(model, copy=True)
            if state.model.shape != (federation.num_params,):
                raise fail(
                    "model",
                    f"array of shape {state.model.shape}",
                    f"must have shape ({federation.num_params},)",
                )
        state.of_rule = self.start(state)
        return state

    def start(self, state: State) -> RuleState:
        """Return what this rule remembers before round 0: stale updates where it has a `memory`, else nothing."""
        return MemoryState(stale=state.remember()) if self.memory else RuleState()

    def local(self, state: State, clients: Ints) -> Local | None:
        """How the participants are to train in the coming round; None: plain local SGD."""
        return None

    def second_pass(self, state: State, clients: Ints) -> Local | None:
        """A second local training of the participants, on the same batches, for `Round.second_pass`; None: none."""
        return None

    def selection(self) -> Selection | None:
        """Whom this rule's server asks among those who would take part; None: everyone."""
        return None

    def on_clock(self) -> Rule:
        """Return this rule as it is run where time is simulated: without delays that it simulates itself."""
        return self

    def traffic(self, state: State, clients: Ints) -> tuple[int, int]:
        """Vectors of length d that go up and down in the coming round with these participants."""
        return len(clients) * self.upload, len(clients) * self.download

    def remember_late(self, state: State, late: Round) -> None:
        """Put updates that came after their round into the memory, before the round `late.index`.

        An unbiased rule stays unbiased: its memory may hold anything that does not depend on who comes next. With the
        clients' p_i, what β learns from an update in time it learns from these too. `late.ages` count from the rounds
        that they were asked in.
        """
        if not self.takes_late:
            raise fail("rule", self.name, "has no memory that an update could be put into after its round")
        self.take_late(state, check_round(state.federation, late))

    def take_late(self, state: State, late: CheckedRound) -> None:
        """Do what `remember_late` says, in a rule that `takes_late`."""
        raise NotImplementedError

    def announce(self, state: State, index: int, clients: Ints, probabilities: Float) -> Announcement:
        """Say before a round how these clients would be weighed, for a memory that they hold themselves.

        What a client is told must not depend on who else comes.
        """
        raise fail("memory", CLIENTS, f"{self.name} cannot say in advance how it weighs a client: use another memory")

    @abstractmethod
    def update(self, state: State, round: CheckedRound) -> Float:
        """Compute Δ and move the state on; refuse a bad round before anything is changed."""

    def combine(self, state: State, round: Round) -> Any:
        """Turn the round's updates into the global update Δ, shape (d,), of the updates' kind and dtype.

        (Where Δ does not fit that dtype, as may happen with float16, it is float64.)
        A round that is wrong in any way is refused whole and leaves the state as it was.
        """
        return cast_like(self._combined(state, round), round.updates)

    def _combined(self, state: State, round: Round) -> Float:
        """Δ as it is computed."""
        if state.rule != self.name:
            raise fail("state", f"state of {state.rule}", f"{self.name} continues only its own state")
        if round.index < state.round:
            raise fail("index", round.index, f"rounds before {state.round} have already been applied")
        checked = check_round(state.federation, round)
        if self.caveat:
            warn_if_uncovered(self.name, self.caveat, checked.given_probabilities)
        delta = self.update(state, checked)
        state.last_seen[checked.clients] = round.index
        state.round = round.index + 1
        return delta

    def step(self, state: State, round: Round) -> Any:
        """w_{t+1} = w_t − η_s Δ (Algorithm 1, last line), in place on `state.model`; returns Δ."""
        model = _model_of(state)
        delta = self.combine(state, round)
        moved = np.asarray(delta)
        for low in range(0, len(moved), _PIECE):  # pieces that stay in the cache: η_s Δ is not made whole
            piece = model[low : low + _PIECE]
            np.subtract(piece, self.server_lr * moved[low : low + _PIECE], out=piece, casting="same_kind")
        return delta

    def advance(self, state: State, round: Round) -> None:
        """Do what `step` does, for large models: Δ in the updates' dtype is not made whole, and not returned."""
        model = _model_of(state)
        delta = self._combined(state, round)
        for low in range(0, len(delta), _PIECE):
            piece, moved = model[low : low + _PIECE], np.asarray(cast_like(delta[low : low + _PIECE], round.updates))
            moved = moved if self.server_lr == 1.0 else self.server_lr * moved
            np.subtract(piece, moved, out=piece, casting="same_kind")


def _model_of(state: State) -> NDArray[Any]:
    if state.model is None:
        raise fail("model", None, "step needs a model: pass model=w to init")
    return state.model


def refuse_non_finite(round: CheckedRound, mix: Float) -> None:
    """Refuse a round in which any update is not finite.

    Looking at a weighted sum of the updates is enough, because NaN and Inf survive it, and |S| times cheaper
    than looking at the updates; only then are they searched for the one to name. Differences were looked at before.
    """
    if any(isinstance(row, Difference) for row in round.updates[:1]) or all_finite(mix):
        return
    both = [*round.updates, *(round.given_second_pass or ())]
    for client, row in zip([*round.clients] * (len(both) // max(round.size, 1)), both, strict=True):
        bad = np.flatnonzero(~np.isfinite(row))
        if bad.size:
            value = float(row[bad[0]])
            raise fail(
                f"update of client {client}", value, f"must be finite (parameter {bad[0]}); round refused", NonFinite
            )
    raise fail(
        "updates",
        "finite numbers whose weighted sum overflows",
        "must be small enough for their sum to be finite",
        NonFinite,
    )
