"""A short pilot for `advise`: what a memory is worth on a task, and how much stored updates have to do with the next.

Clients come as in the log: for each seed a sample of them. U-FedAvg and the default rule run for some rounds, each at a
few rates: half decades about the task's own, and further ones while the best of either is at an edge. Rates are chosen
on some seeds; at its best rate each rule is judged on others, by the objective, on the same participants and batches.

Then FedStale runs at the best rate of U-FedAvg. Of each participation of a client that was seen before, ‖Δ_i‖²,
⟨Δ_i, h_i⟩ and ‖h_i‖² are added up with the weight (1 − p_i)/p_i² of the participation noise (a client is seen with
probability p_i only), and the correlation is

    c = Σ a ⟨Δ, h⟩ / √(Σ a ‖Δ‖² · Σ a ‖h‖²),

with a standard error by leaving out one of ten stretches of the rounds in turn. From a store, where somebody has run
FedStale with beta="auto" already, c is the β that it found, which is the same where ‖h‖ = ‖Δ‖, with its standard error
over the runs; nothing else is measured there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from .. import rules
from ..analysis import Estimate, tail
from ..checks import Float, NonFinite, counted, fail, printable, unknown
from ..configs import text
from ..federation import Ints
from ..measured import MeasuredCorrelation, MeasuredGain, PilotedRule
from ..participation import Bernoulli, Participation, Process, Trace
from ..randomness import generator
from ..tasks.defaults import CLIENTS, RATES, full_name
from ..tasks.names import QUADRATIC, task_names
from ..terminal import make_bar, shows_progress
from .build import build
from .comparing import compare_settings
from .methods import PLAIN, Method
from .settings import make_settings

if TYPE_CHECKING:
    from ..terminal import Bar
    from .interfaces import Trainer
    from .loop import Simulation

_CLIENTS, ROUNDS = 24, 200
_CHOOSING, _JUDGING = range(100, 104), range(10)
"""Seeds."""
_RULES = (PLAIN, Method(rules.DEFAULT))
_MOST_RATES = 8
_FEWEST_RUNS = len(_RULES) * (4 * len(_CHOOSING) + len(_JUDGING))
"""With four rates, the best ones of which are no edges."""
_STRETCHES = 10


@dataclass(frozen=True)
class _Pilot:
    """What a pilot found.

    The correlation is None where FedStale diverged, or nobody who is sometimes away came twice. A store has no gain.
    """

    measured: MeasuredCorrelation | None
    gain: MeasuredGain | None
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


def run_pilot(task: str, who: Trace | Float, *, rounds: int = ROUNDS, progress: bool | None = False) -> _Pilot:
    """Run U-FedAvg, the default rule and FedStale on a task, and measure.

    Parameters
    ----------
    task
        The name of a task.
    who
        The log, of which samples of the clients that come are replayed; or the p_i.
    rounds
        At most so many; a log that is shorter ends the pilot, or is repeated where it says so.
    progress
        Whether to show a progress bar; None: where somebody watches.
    """
    if task not in task_names():
        raise unknown("task", task, task_names())
    bar = make_bar("pilot", _FEWEST_RUNS, transient=True) if shows_progress(progress) else None
    try:
        return _Runs(task, who, rounds, bar).pilot()
    finally:
        if bar is not None:
            bar.stop()


@dataclass
class _Runs:
    """The runs of a pilot."""

    task: str
    who: Trace | Float
    rounds: int
    bar: Bar | None
    objectives: dict[tuple[Method, float, int], tuple[float, int | None]] = field(default_factory=dict)
    """By rule, rate and seed; and the round in which the run diverged."""

    def pilot(self) -> _Pilot:
        """Compare, then measure the correlation."""
        tried, best = self._rates()
        plain, memory = (
            PilotedRule(str(method.rule), tried[method], best[method], self._over(method, best[method], _JUDGING))
            for method in _RULES
        )
        first, second = ([self._objective(method, best[method], seed)[0] for seed in _JUDGING] for method in _RULES)
        process, length = self._sample(0)
        where = f"{self.task}, {process.num_clients} clients, {length} rounds"
        gain = MeasuredGain(plain, memory, Estimate.of(np.subtract(first, second)), where)
        measured, num_params = self._correlation(plain.rate, f"{where}, FedStale at rate {plain.rate:.3g}")
        return _Pilot(measured, gain, num_params)

    def _rates(self) -> tuple[dict[Method, dict[float, float]], dict[Method, float]]:
        """Return the mean objective of each rule by rate, and its best rate, on the seeds for choosing."""
        from ..sweeps.widening import beyond

        own = RATES[full_name(self.task)]
        rates = [beyond(beyond(own, -1), -1), beyond(own, -1), own, beyond(own, 1)]
        while True:
            tried = {method: {rate: self._over(method, rate, _CHOOSING).mean for rate in rates} for method in _RULES}
            best = {
                method: min(found, key=lambda rate: np.nan_to_num(found[rate], nan=np.inf))
                for method, found in tried.items()
            }
            low = [beyond(rates[0], -1)] if rates[0] in best.values() else []
            high = [beyond(rates[-1], 1)] if rates[-1] in best.values() else []
            if not low + high or len(rates) >= _MOST_RATES:
                return tried, best
            rates = [*low, *rates, *high]

    def _over(self, method: Method, rate: float, seeds: range) -> Estimate:
        values, ended = zip(*(self._objective(method, rate, seed) for seed in seeds), strict=True)
        return Estimate.of(values, ended)

    def _objective(self, method: Method, rate: float, seed: int) -> tuple[float, int | None]:
        """Return the objective at the end of a run, and when it diverged; it is run only once."""
        if (method, rate, seed) not in self.objectives:
            process, length = self._sample(seed)
            every = max(1, length // 20)
            settings = make_settings(
                task=self.task, participation=process, rounds=length, seed=seed, lr=rate, evaluate_every=every
            )
            run = compare_settings(settings, [method], 1).results[method][seed]
            metric = "objective" if "objective" in run.metrics else "excess_loss"
            self.objectives[method, rate, seed] = run.tail(metric), run.diverged_in
            if self.bar is not None:
                self.bar.update(min(len(self.objectives), _FEWEST_RUNS), f"{method.label}, rate {rate:.3g}")
        return self.objectives[method, rate, seed]

    def _sample(self, seed: int) -> tuple[Process, int]:
        """The clients of a seed, spread over the p_i of those that come, and the number of rounds."""
        count = CLIENTS.get(full_name(self.task))
        p = self.who.probabilities() if isinstance(self.who, Trace) else np.asarray(self.who)
        comes = np.flatnonzero(p > 0.0)
        order = comes[np.argsort(p[comes], kind="stable")]
        if count is None:
            count = min(_CLIENTS, comes.size)
        # One of each of as many equal parts of the clients sorted by p; a client several times where there are fewer.
        parts = np.array_split(np.repeat(order, -(-count // comes.size)), count)
        rng = generator(seed, "clients of a pilot")
        members = np.array([int(rng.choice(part)) for part in parts])
        if isinstance(self.who, Trace):
            chosen = self.who.subset(members)
            return chosen, min(self.rounds, chosen.num_rounds) if not chosen.repeat else self.rounds
        return Bernoulli(p[members]), self.rounds

    def _correlation(self, rate: float, where: str) -> tuple[MeasuredCorrelation | None, int]:
        """Run FedStale and listen: the correlation, and the number of parameters of the model."""
        process, length = self._sample(0)
        settings = make_settings(
            task=self.task, rule="fedstale", beta="auto", participation=process, rounds=length, seed=0, lr=rate,
            objective=False, evaluate_every=length,
        )  # fmt: skip
        simulation = build(settings, participation=Participation(process), progress=False)
        listening = _Listening(simulation.trainer, simulation)
        simulation.trainer = cast("Trainer", listening)  # it passes everything on
        try:
            while not simulation.done:
                simulation.step()
        except NonFinite:
            return None, simulation.federation.num_params
        found = _correlation(listening, length)
        if found is None:  # the rules were compared nevertheless
            return None, simulation.federation.num_params
        alike = float(np.clip(np.mean(listening.cosines), -1.0, 1.0)) if listening.cosines else None
        return MeasuredCorrelation(*found, alike, where), simulation.federation.num_params


def stored_pilot(folder: Path) -> _Pilot:
    """Read the β that runs of FedStale with beta="auto" found, from a store: of each run one, in its last tenth."""
    from ..store import Store

    ends, sizes, tasks = [], set(), {}
    with Store.open(folder, create=False, read_only=True) as store:
        for info in store.runs(status="finished"):
            fits = info.config.get("rule") == "fedstale" and info.config.get("beta") == "auto"
            if not fits or not {"beta", "participants", "bytes_up"} <= info.summary.keys():
                continue
            series = store.run(info.id).metrics(["beta", "participants", "bytes_up"])
            end = tail(series["round"], series["beta"], planned=info.rounds_done, done=info.rounds_done)
            if np.isnan(end):
                continue
            task = full_name(info.config.get("task"))
            ends.append(end)
            sizes.add(_num_params(info.config, series))
            tasks[json.dumps(task, sort_keys=True)] = printable(text(task), 40)
    if not ends:
        raise fail("--pilot", str(folder), 'has no finished run with rule "fedstale" and beta "auto"')
    if len(tasks) > 1:
        raise fail("--pilot", str(folder), f"has runs on {', '.join(sorted(tasks.values()))}: a pilot is of one task")
    found = Estimate.of(ends)
    where = f"{folder}: the β of FedStale auto in the last tenth of its rounds, {counted(found.count, 'run')}"
    return _Pilot(
        MeasuredCorrelation(found.mean, found.error, None, where), None, sizes.pop() if len(sizes) == 1 else None
    )


def _num_params(config: dict[str, Any], series: dict[str, NDArray[Any]]) -> int | None:
    """The length of the update that each participant sent; None with a clock, where late ones are sent as well."""
    came = series["participants"] > 0
    if config.get("server") != "rounds" or not came.any():
        return None
    task = config.get("task")
    quadratic = task == QUADRATIC or (isinstance(task, dict) and task.get("class") == "Quadratic")
    return round(float((series["bytes_up"][came] / series["participants"][came])[-1]) / (8 if quadratic else 4))


def _correlation(listening: _Listening, rounds: int) -> tuple[float, float] | None:
    """Return c over all rounds, and its jackknife error over stretches of them; None where there is nothing to add."""
    sums = np.zeros((_STRETCHES, 3))
    for round, heard in listening.heard:
        sums[round * _STRETCHES // rounds] += heard

    def of(total: Float) -> float:
        fresh, inner, stale = total
        return float(np.clip(inner / np.sqrt(fresh * stale), -1.0, 1.0)) if min(fresh, stale) > 0.0 else float("nan")

    whole = of(sums.sum(axis=0))
    if not np.isfinite(whole):
        return None
    left = np.array([of(sums.sum(axis=0) - stretch) for stretch in sums])
    left = left[np.isfinite(left)]
    error = float(np.sqrt((len(left) - 1) * np.mean((left - left.mean()) ** 2))) if len(left) > 1 else 1.0
    return whole, error
