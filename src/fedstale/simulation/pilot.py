"""A short pilot for `advise`: how much a client's stored update has to do with its next one, measured on a task.

FedStale runs for some rounds with clients that come as in the log (a sample of them). Of each participation of a client
that was seen before, ‖Δ_i‖², ⟨Δ_i, h_i⟩ and ‖h_i‖² are added up with the weight (1 − p_i)/p_i² of the participation
noise (a client is seen with probability p_i only), and the correlation is

    c = Σ a ⟨Δ, h⟩ / √(Σ a ‖Δ‖² · Σ a ‖h‖²),

with a standard error by leaving out one of ten stretches of the rounds in turn. From a store, where somebody has run
FedStale with beta="auto" already, c is the β that it found, which is the same where ‖h‖ = ‖Δ‖.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from ..advice import MeasuredCorrelation
from ..checks import Float, NonFinite, fail
from ..federation import Ints
from ..participation import Bernoulli, Participation, Process, Trace
from ..randomness import generator
from .build import build
from .settings import make_settings

if TYPE_CHECKING:
    from .interfaces import Trainer
    from .loop import Simulation

CLIENTS, ROUNDS = 24, 200
_STRETCHES = 10
_TAIL = 0.1


@dataclass(frozen=True)
class _Pilot:
    """What a pilot found: the correlation, and the number of parameters of its model (None from a store)."""

    measured: MeasuredCorrelation
    num_params: int | None


@dataclass
class _Listening:
    """A trainer that writes down what updates have to do with what is remembered, before the rule sees them."""

    inner: Any
    simulation: Simulation
    heard: list[tuple[int, Float]] = field(default_factory=list)
    """Of each round, Σ a ‖Δ‖², Σ a ⟨Δ, h⟩ and Σ a ‖h‖²"""
    cosines: list[float] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def updates(self, model: NDArray[Any], clients: Ints, round: int, local: Any = None) -> NDArray[Any]:
        """Train, and listen."""
        found: NDArray[Any] = self.inner.updates(model, clients, round, local)
        state = self.simulation.state
        if len(clients) and state.estimator is not None:
            p = self.simulation.estimator.probabilities(state.estimator, clients)
            fresh = np.asarray(found, dtype=np.float64)
            seen = state.last_seen[clients] >= 0
            stale = np.asarray(state.memory.rows(clients[seen]), dtype=np.float64)
            weights = ((1.0 - p) / p**2)[seen]
            again = fresh[seen]
            pairs = ((again, again), (again, stale), (stale, stale))
            self.heard.append((round, np.array([weights @ np.einsum("ij,ij->i", a, b) for a, b in pairs])))
            if len(clients) > 1:
                squares = np.einsum("ij,ij->i", fresh, fresh)
                whole = fresh.sum(axis=0)
                count = len(clients) * (len(clients) - 1)
                self.cosines.append(float((whole @ whole - squares.sum()) / count / max(squares.mean(), 1e-300)))
        return found


def run_pilot(task: str, who: Trace | Float, *, rounds: int = ROUNDS, seed: int = 0) -> _Pilot:
    """Run FedStale on a task and measure.

    Parameters
    ----------
    task
        The name of a task.
    who
        The log, of which a sample of the clients that come is replayed; or the p_i.
    rounds
        At most so many; a log that is shorter ends the pilot, or is repeated where it says so.
    seed
        Of the run and of the sample.
    """
    process, length = _sample(who, rounds, seed)
    settings = make_settings(
        task=task, rule="fedstale", beta="auto", participation=process, rounds=length, seed=seed, objective=False,
        evaluate_every=length,
    )  # fmt: skip
    simulation = build(settings, participation=Participation(process), progress=False)
    listening = _Listening(simulation.trainer, simulation)
    simulation.trainer = cast("Trainer", listening)  # it passes everything on
    try:
        while not simulation.done:
            simulation.step()
    except NonFinite:
        what = f"diverged in round {simulation.state.round + 1}: its learning rate is too large for these p"
        raise fail("--pilot", task, what) from None
    d = simulation.federation.num_params
    correlation, error = _correlation(listening, length)
    alike = float(np.clip(np.mean(listening.cosines), -1.0, 1.0)) if listening.cosines else None
    where = f"{task}, {process.num_clients} clients, {length} rounds"
    return _Pilot(MeasuredCorrelation(correlation, error, alike, where), d)


def stored_pilot(folder: Path) -> _Pilot:
    """Read the β that runs of FedStale with beta="auto" found, from a store."""
    from ..store import Store

    ends = []
    with Store.open(folder, create=False, read_only=True) as store:
        for info in store.runs(status="finished"):
            if info.config.get("rule") == "fedstale" and info.config.get("beta") == "auto":
                values = store.run(info.id).metrics(["beta"])["beta"]
                values = values[~np.isnan(values)]
                ends += values[-max(1, int(_TAIL * len(values))) :].tolist()[-20:]
        count = len(store.runs(status="finished"))
    if not ends:
        raise fail("--pilot", str(folder), 'has no finished run with rule "fedstale" and beta "auto"')
    error = max(float(np.std(ends)), 0.02)
    where = f"{folder}: the β of FedStale auto in the last tenth of its rounds, {count} finished runs in the store"
    return _Pilot(MeasuredCorrelation(float(np.mean(ends)), error, None, where), None)


def _sample(who: Trace | Float, rounds: int, seed: int) -> tuple[Process, int]:
    """The clients of the pilot: spread over the p_i of those that come."""
    p = who.probabilities() if isinstance(who, Trace) else np.asarray(who)
    comes = np.flatnonzero(p > 0.0)
    order = comes[np.argsort(p[comes], kind="stable")]
    # One of each of as many equal parts of the clients sorted by p.
    parts = np.array_split(order, min(CLIENTS, comes.size))
    rng = generator(seed, "clients of a pilot")
    members = np.array([int(rng.choice(part)) for part in parts])
    if isinstance(who, Trace):
        chosen = who.subset(members)
        return chosen, min(rounds, chosen.num_rounds) if not chosen.repeat else rounds
    return Bernoulli(p[members]), rounds


def _correlation(listening: _Listening, rounds: int) -> tuple[float, float]:
    """Return c over all rounds, and its jackknife error over stretches of them."""
    sums = np.zeros((_STRETCHES, 3))
    for round, heard in listening.heard:
        sums[round * _STRETCHES // rounds] += heard

    def of(total: Float) -> float:
        fresh, inner, stale = total
        return float(np.clip(inner / np.sqrt(fresh * stale), -1.0, 1.0)) if min(fresh, stale) > 0.0 else float("nan")

    whole = of(sums.sum(axis=0))
    if not np.isfinite(whole):
        what = "no client came twice in the pilot (or those who did always come): run more rounds"
        raise fail("--pilot", f"{rounds} rounds", what)
    left = np.array([of(sums.sum(axis=0) - stretch) for stretch in sums])
    left = left[np.isfinite(left)]
    error = float(np.sqrt((len(left) - 1) * np.mean((left - left.mean()) ** 2))) if len(left) > 1 else 1.0
    return whole, error
