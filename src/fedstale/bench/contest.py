"""How methods are compared fairly: each at its own best rate, chosen on some seeds and judged on others.

In every place (participation × data) a method's rate is the one with the least objective Σ α_i F_i over the clients'
training data, on the seeds for choosing; a rate at the edge of its grid is widened until it is interior. Then it runs
at that rate on the seeds for judging, and only those count. All runs go to a store: the same call goes on where it was
interrupted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ..analysis import Cell, Estimate, Gap, MeasuredRun, decades_of_good_rates, tuned
from ..checks import Float
from ..simulation.settings import TIME_SETTINGS, Settings
from ..store import Store
from ..sweeps import SweepProgress, results, widen

METRIC = "objective"
"""What rates are chosen by, and what methods are ranked by."""
Run = Callable[[Sequence[Settings]], SweepProgress]
"""Does runs that the store has not."""
Key = tuple[str, str]
"""A place and a method."""


@dataclass(frozen=True, eq=False)
class Entry:
    """A method in a place.

    Attributes
    ----------
    place, method
        Their names.
    settings
        Of a run, by rate and seed.
    rates
        The rates to begin with.
    more_seeds
        Seeds on which its rate is chosen beside those of all.
    """

    place: str
    method: str
    settings: Callable[[float, int], Settings]
    rates: tuple[float, ...]
    more_seeds: tuple[int, ...] = ()

    @property
    def key(self) -> Key:
        """Place and method."""
        return self.place, self.method


def all_present(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings in which all clients come in every round: the limit that no method reaches.

    The rare half of two groups stays the half whose labels are swapped; other processes go without a swap. Time plays
    no part in it.
    """
    always: dict[str, Any] = {"participation": "two-groups", "p_min": 1.0, "participation_options": {}}
    rounds = {name: value for name, value in given.items() if name not in ("server", *TIME_SETTINGS)}
    return {**rounds, **always, "selection": "all", "selection_options": {}}


@dataclass
class Chosen:
    """The best rates, and what could not be run.

    Attributes
    ----------
    cells
        The seeds for choosing at the best rate, with what was seen at the others.
    failures
        Why a method has none.
    """

    cells: dict[Key, Cell] = field(default_factory=dict)
    failures: dict[Key, str] = field(default_factory=dict)


def choose_rates(
    entries: Sequence[Entry], seeds: Sequence[int], store: Store, run: Run, *, same_rates: bool = False
) -> Chosen:
    """Find the best interior rate of every entry on the seeds for choosing.

    Parameters
    ----------
    entries
        The methods and places.
    seeds
        For choosing.
    store, run
        Where the results go, and what does the runs.
    same_rates
        Whether in each place all methods are tried at all rates at which one of them was tried. The objective may have
        more than one minimum along the rates, and a method whose grid ends between them would get the worse one.
    """
    chosen, runs = Chosen(), []
    keys: dict[str, list[Key]] = {}  # everybody is the same run in places that differ only in who comes
    for entry in entries:
        own = [entry.settings(rate, seed) for rate in entry.rates for seed in (*seeds, *entry.more_seeds)]
        runs += own if _where(own[0]) not in keys else []
        keys.setdefault(_where(own[0]), []).append(entry.key)

    def noted(wanted: Sequence[Settings]) -> None:
        for settings, reason in run(wanted).failures:
            for key in keys[_where(settings)]:
                chosen.failures.setdefault(key, reason)

    noted(runs)
    whole = widen(runs, store, noted, metric=METRIC)
    while same_rates and (missing := list(_rates_of_others(entries, seeds, whole))):
        noted(missing)
        whole = widen([*whole, *missing], store, noted, metric=METRIC)
    for cell in tuned(results(store, whole, METRIC)):
        chosen.cells |= dict.fromkeys(keys[_where(cell.settings)], cell)
    chosen.failures = {key: reason for key, reason in chosen.failures.items() if key not in chosen.cells}
    return chosen


def _rates_of_others(entries: Sequence[Entry], seeds: Sequence[int], runs: Sequence[Settings]) -> Iterator[Settings]:
    """The runs at rates at which only other methods of the same place were tried."""
    tried: dict[str, set[float]] = {}
    for settings in runs:
        tried.setdefault(_where(settings), set()).add(settings.lr or 0.0)
    own = {entry.key: _where(entry.settings(entry.rates[0], seeds[0])) for entry in entries}
    for where, entry in {own[entry.key]: entry for entry in entries}.items():
        others = {rate for other in entries if other.place == entry.place for rate in tried[own[other.key]]}
        for rate in sorted(others):
            if not any(math.isclose(rate, known, rel_tol=1e-6) for known in tried[where]):
                tried[where].add(rate)
                yield from (entry.settings(rate, seed) for seed in (*seeds, *entry.more_seeds))


def _where(settings: Settings) -> str:
    """Everything but rate and seed: what a best rate belongs to."""
    return repr({name: value for name, value in settings.record().items() if name not in ("lr", "seed")})


@dataclass(frozen=True, eq=False)
class Score:
    """A method in a place, judged.

    Attributes
    ----------
    key
        Place and method.
    cell
        From the seeds for choosing: the rate, whether it is at an edge, and what other rates gave.
    runs
        On the seeds for judging.
    gap
        Between U-FedAvg and everybody, on the same seeds; None where one of them was not run.
    """

    key: Key
    cell: Cell
    runs: tuple[MeasuredRun, ...]
    gap: Gap | None = None

    @cached_property
    def by_seed(self) -> Float:
        """The objectives, shape (seeds,); NaN where a run diverged."""
        return np.array([-run.accuracy for run in self.runs])

    @property
    def objective(self) -> Estimate:
        """Σ α_i F_i over the seeds."""
        return Estimate.of(self.by_seed, [run.diverged_in for run in self.runs])

    @property
    def closed(self) -> Estimate:
        """The share of the gap that it closes."""
        return self.gap.closed(self.by_seed) if self.gap else Estimate(np.nan, np.nan, len(self.runs))

    @property
    def decades(self) -> float:
        """Of rates within 5 % of the best."""
        return decades_of_good_rates(self.cell)

    def last(self, metric: str) -> Estimate:
        """The last value of a metric over the seeds."""
        return Estimate.of([run.metrics.get(metric, np.nan) for run in self.runs])


def judge(
    runs: Mapping[Key, Sequence[Settings]],
    cells: Mapping[Key, Cell],
    store: Store,
    run: Run,
    *,
    plain: str,
    everybody: str,
) -> list[Score]:
    """Run methods at their rates on the seeds for judging.

    Parameters
    ----------
    runs
        The settings of each method in each place, one per seed, with the rate of its cell.
    cells
        What was chosen.
    store, run
        Where the results go, and what does the runs.
    plain, everybody
        The methods between which the gap lies.
    """
    every = [settings for own in runs.values() for settings in own]
    run(every)
    measured = {id(one.settings): one for one in results(store, every, METRIC)}  # the store is read once
    found = {key: tuple(measured[id(one)] for one in own if id(one) in measured) for key, own in runs.items()}
    done = {key: own for key, own in found.items() if len(own) == len(runs[key])}
    gaps = dict(_gaps(done, plain, everybody))
    return [Score(key, cells[key], own, gaps.get(key[0])) for key, own in done.items()]


def _gaps(runs: Mapping[Key, Sequence[MeasuredRun]], plain: str, everybody: str) -> Iterable[tuple[str, Gap]]:
    for place in dict.fromkeys(place for place, _ in runs):
        ends = [runs.get((place, method)) for method in (plain, everybody)]
        if ends[0] is not None and ends[1] is not None:
            low, high = (np.array([-run.accuracy for run in end]) for end in (ends[0], ends[1]))
            yield place, Gap(low, high)
