"""Curves: runs that differ only in the seed are one, with mean and standard error at every round."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from ..analysis import METHOD_SETTINGS, Style, config_label, diverged_text, method_order, over_seeds, style
from ..analysis.axes import AXES
from ..analysis.palette import SOLID, repetitions
from ..checks import Float
from ..store import RunInfo
from ..store.blocks import Series
from .filters import title
from .run_settings import differing, full, value
from .source import Source

MOST = 24
"""Curves that are drawn at once: more cannot be told apart."""
_POINTS = 600  # of one curve: more than a screen has


@dataclass(frozen=True)
class RunGroup:
    """Runs that differ only in the seed, drawn as one curve.

    Attributes
    ----------
    label
        In what it differs from the other curves.
    runs
        One per seed.
    style
        The colour of its method, with dashes where another curve has that, too.
    repetition
        Of its method, by which the style is found again.
    """

    label: str
    runs: tuple[RunInfo, ...]
    style: Style = SOLID
    repetition: int = 0


@dataclass(frozen=True, eq=False)
class PlottedCurve:
    """A curve's numbers: x, mean and standard error (NaN where one run is all there is), all of shape (R,)."""

    x: Float
    mean: Float
    error: Float
    rough: bool = False
    """Whether x was estimated from some of the rounds, because the others were not recorded."""
    ending: str = ""
    """Why it ends before others: "diverged in round 17 (1 of 3 seeds)"."""


def group(infos: Iterable[RunInfo], looks: Mapping[str, int] = MappingProxyType({})) -> list[RunGroup]:
    """Put seeds together and name what remains by its differences; of equal seeds the newest counts.

    A curve keeps its style while others come and go: those that were chosen first have the first choice, and `looks`
    has, by the id of a run, the repetition of its method that it is drawn as.
    """
    groups: dict[str, dict[Any, RunInfo]] = {}
    for info in infos:
        # A run without a seed is nobody's repetition.
        key = repeated(info) or info.id
        seeds = groups.setdefault(key, {})
        seed = info.config.get("seed")
        if seed not in seeds or seeds[seed].created < info.created:
            seeds[seed] = info
    members = [tuple(seeds[seed] for seed in sorted(seeds, key=repr)) for seeds in groups.values()]
    methods = [_method(runs[0]) for runs in members]
    held = {at: [looks[info.id] for info in runs if info.id in looks] for at, runs in enumerate(members)}
    drawn = repetitions(methods, {at: numbers[0] for at, numbers in held.items() if numbers})
    labels = _labels([runs[0] for runs in members])
    found = [
        RunGroup(label, runs, style(method, k), k)
        for label, runs, method, k in zip(labels, members, methods, drawn, strict=True)
    ]
    return sorted(found, key=lambda curve: _order(curve.runs[0]))


def repeated(info: RunInfo) -> str | None:
    """What a run has in common with its repetitions: its config but for the seed; None for a run without a seed."""
    if "seed" not in info.config:
        return None
    rest = {key: value for key, value in full(info).items() if key != "seed"}
    return json.dumps(rest, sort_keys=True)


def line(source: Source, curve: RunGroup, metric: str, axis: str = "round", window: int = 1) -> PlottedCurve | None:
    """Mean and standard error over the runs that have the metric; None where none has it, or nothing for the axis.

    With a `window` each run is smoothed first: a point is the mean of so many recorded ones, up to and with its own.
    """
    scale = AXES[axis]
    parts: list[tuple[Series, Float]] = []
    ended = [info.diverged_in for info in curve.runs]
    rough = False
    for info in curve.runs:
        found = source.series(info, (metric, *scale.metrics))
        if metric not in found:
            continue
        series = _smoothed(_finite(found[metric]), window)
        used = [(found[name].rounds, found[name].values) for name in scale.metrics if name in found]
        at = scale.places(series.rounds, used)
        if at is None or not len(series.rounds):
            continue
        rough = rough or (used != [] and scale.summed and int(series.rounds[-1]) + 1 > len(series.rounds))
        parts.append((series, at))
    if not parts:
        return None
    whole = over_seeds([(one.rounds, one.values) for one, _ in parts], ended, [at for _, at in parts])
    ending = diverged_text(whole.diverged, len(curve.runs)) if whole.diverged else ""
    return _thinned(PlottedCurve(whole.x, whole.mean, whole.error, rough, ending)) if len(whole.x) else None


def _finite(series: Series) -> Series:
    good = np.isfinite(series.values)
    return series if good.all() else Series(series.rounds[good], series.counts[good], series.values[good])


def _smoothed(series: Series, window: int) -> Series:
    if window < 2 or not len(series.values):
        return series
    sums = np.cumsum(np.concatenate([[0.0], series.values]))
    ends = np.arange(1, len(sums))
    starts = np.maximum(ends - window, 0)
    return Series(series.rounds, series.counts, (sums[ends] - sums[starts]) / (ends - starts))


def _thinned(whole: PlottedCurve) -> PlottedCurve:
    if len(whole.x) <= _POINTS:
        return whole
    keep = np.unique(np.linspace(0, len(whole.x) - 1, _POINTS).astype(int))
    return replace(whole, x=whole.x[keep], mean=whole.mean[keep], error=whole.error[keep])


def _labels(infos: Sequence[RunInfo]) -> list[str]:
    if len(infos) == 1:
        return [title(infos[0])]
    every = [full(info) for info in infos]
    varied = [key for key in differing(every) if key not in ("seed", *METHOD_SETTINGS)]
    methods = [_method(info) for info in infos]
    labels = [
        " · ".join([method, *(f"{key} {value(config.get(key))}" for key in varied)])
        for method, config in zip(methods, every, strict=True)
    ]
    same = {label for label in labels if labels.count(label) > 1}
    return [f"{label} · {info.id}" if label in same else label for label, info in zip(labels, infos, strict=True)]


def _method(info: RunInfo) -> str:
    return config_label(full(info)) or title(info)


def _order(info: RunInfo) -> tuple[Any, ...]:
    return (*method_order(_method(info)), json.dumps(full(info), sort_keys=True), info.id)
