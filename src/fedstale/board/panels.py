"""What each panel shows for the chosen runs: a figure with its words, or the one line that says why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..analysis import diverged_text, raster
from ..analysis.attendance import number_of_clients
from ..analysis.axes import AXES, ROUND, VIRTUAL
from ..analysis.metrics import TITLES, group_name, is_share, metric_text, metric_title
from ..federation import Ints
from ..store import RunInfo
from . import clients, figures
from .curves import MOST, RunGroup, line
from .figures import Drawn, Figure
from .source import Source

_COLUMNS, _ROWS = 500, 200  # cells of the raster: more than the panel has pixels for
_NOTHING = "Choose runs in the table, or a cell of the heat map."
_RECORDED = {
    "bytes": "bytes",
    "seconds": "seconds of computing (a sweep keeps no time)",
    VIRTUAL: "virtual time (that needs a clock in the simulation)",
}
"""What runs may lack, for the axes."""
_KEPT_BY = "sweeps keep only the metrics of evaluated rounds; fedstale run records who came"
_OWN_PANEL = ("beta", *(name for axis in AXES.values() for name in axis.metrics))


@dataclass(frozen=True)
class Panel:
    """A figure, a note below it, what is read aloud of it; or the line that stands instead."""

    figure: Figure = field(default_factory=lambda: figures.BLANK)
    note: str = ""
    spoken: str = ""
    instead: str = ""


class Panels:
    """The panels over a source."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def metrics(self, curves: Sequence[RunGroup]) -> dict[str, str]:
        """The metrics that the curves have, the best known first, by name and heading."""
        found = dict.fromkeys(name for curve in curves for info in curve.runs for name in info.summary)
        own = [name for name in found if name in _OWN_PANEL or name.endswith("_tail") or "_group" in name]
        names = [name for name in (*TITLES, *found) if name in found and name not in own]
        return {name: metric_title(name) for name in dict.fromkeys(names)}

    def axes(self, curves: Sequence[RunGroup]) -> dict[str, bool]:
        """The axes, and whether some chosen run recorded what they need; all, where nothing is chosen."""
        runs = [info for curve in curves for info in curve.runs]
        return {name: not runs or any(axis.known(info.summary) for info in runs) for name, axis in AXES.items()}

    def count(self, infos: Sequence[RunInfo], curves: Sequence[RunGroup]) -> str:
        """How much is chosen."""
        if not infos:
            return "nothing"
        text = f"{len(infos)} run{'s' * (len(infos) > 1)} in {len(curves)} curve{'s' * (len(curves) > 1)}"
        return text + (f"; the first {MOST} are drawn" if len(curves) > MOST else "")

    def curve(
        self, curves: Sequence[RunGroup], metric: str, axis: str, window: int = 1, *, log: bool | None = None
    ) -> Panel:
        """Learning curves; the y axis is linear, that of an excess loss logarithmic, unless `log` says otherwise."""
        name = metric_title(metric)
        log = metric == "excess_loss" if log is None else log
        lines = self._lines(curves, metric, axis, window)
        if not lines:
            if not curves:
                return Panel(instead=_NOTHING)
            if ended := self._diverged(curves):
                return Panel(instead=" ".join(ended))
            if axis != ROUND and self._lines(curves, metric, ROUND):
                return Panel(instead=f"None of the chosen runs recorded {_RECORDED[axis]}: choose rounds.")
            return Panel(instead=f"The chosen runs have no {name.lower()} yet.")
        seeds = max(len(curve.runs) for curve in curves)
        notes = ["Band: mean ± standard error over seeds."] if seeds > 1 else []
        notes += self._diverged(curves)
        if any(one.rough for _, _, one in lines):
            notes.append(f"Not every round was recorded: {axis} are estimated from those that were.")
        if absent := min(len(curves), MOST) - len(lines):
            these = f"{absent} of {len(curves)} curves {'is' if absent == 1 else 'are'} not drawn"
            what = (
                _RECORDED[axis]
                if axis != ROUND and len(self._lines(curves, metric, ROUND)) > len(lines)
                else name.lower()
            )
            notes.append(f"{these}: no {what} recorded.")
        if window > 1:
            notes.append(f"Smoothed: each point is the mean of the last {window} recorded ones, seed by seed.")
        if log and any((one.mean <= 0).any() for _, _, one in lines):
            notes.append("Values that are not positive have no place on a logarithmic axis.")
        if not log and is_share(metric) and figures.late([one for _, _, one in lines]):
            notes.append("The first rounds are below the visible range: double-click to see everything.")
        spoken = f"{name} against {AXES[axis].title}. " + self._ends(lines, metric)
        return Panel(figures.curves(lines, metric, axis, log=log), " ".join(notes), spoken)

    def beta(self, curves: Sequence[RunGroup]) -> Panel:
        """β over time."""
        lines = self._lines(curves, "beta", "round")
        if not lines:
            return Panel(instead=_NOTHING if not curves else "No β was recorded: these rules keep no stale updates.")
        return Panel(figures.betas(lines), "", "β against round. " + self._ends(lines, "beta"))

    def groups(self, curves: Sequence[RunGroup]) -> Panel:
        """Accuracy of the frequent and of the rare clients."""
        found = []
        names = sorted({name for c in curves for i in c.runs for name in i.summary if _group(name) is not None})
        for curve in curves[:MOST]:
            for name in names:
                one = line(self._source, curve, name)
                if one is not None:
                    found.append((curve.label, curve.style, _group(name) or 0, one))
        if not found:
            why = "No accuracy by group was recorded: the task has no accuracy, or only one group."
            return Panel(instead=why if curves else _NOTHING)
        ends = [(f"{label}, {group_name(number)}", style, one) for label, style, number, one in found]
        spoken = "Accuracy of each participation group against round. " + self._ends(ends, "accuracy")
        return Panel(figures.groups(found), "Solid: frequent clients. Dotted: rare clients.", spoken)

    def inspected_run(self, info: RunInfo | None) -> tuple[Panel, Panel, Panel]:
        """Raster, staleness and probabilities of one run."""
        if info is None:
            return (Panel(instead=_NOTHING),) * 3
        came = self._source.participants(info)
        if not came:
            absent = Panel(instead=f"Participants were not recorded: {_KEPT_BY}.")
            return absent, absent, self._probabilities(info, came)
        count = number_of_clients(info.config, came)
        seen = raster(came, count, rows=_ROWS, columns=_COLUMNS)
        visits = sum(map(len, came.values()))
        note = "A cell is a bin of clients and rounds; the darker, the more of them came." if seen.binned else ""
        spoken = f"{count} clients, {len(came)} rounds; {visits / len(came):.1f} clients came in a round on average."
        return Panel(figures.raster(seen), note, spoken), self._staleness(came, count), self._probabilities(info, came)

    def _staleness(self, came: dict[int, Ints], count: int) -> Panel:
        found = clients.ages(came, count)
        never = int(np.isnan(found.now).sum())
        note = "● mean · − longest · × now." + (f" {never} of {count} clients never came." if never else "")
        if count > clients.MOST_CLIENTS:
            note += f" {clients.MOST_CLIENTS:,} of {count:,} clients are drawn."
        if never == count:
            return Panel(instead="No client has come yet.")
        oldest = int(np.nanargmax(found.now))
        spoken = f"Longest wait now: client {oldest}, {found.now[oldest]:.0f} rounds."
        return Panel(figures.staleness(found), note, spoken)

    def _probabilities(self, info: RunInfo, came: dict[int, Ints]) -> Panel:
        found = clients.probabilities(self._source, info, came)
        if found is None:
            if info.config.get("probabilities") == "known":
                return Panel(instead="Nothing was estimated: this run knew the true p (probabilities = known).")
            return Panel(instead="Estimates of p were not recorded by this run.")
        error = float(np.sqrt(np.nanmean((found.estimated - found.true) ** 2)))
        what = "the share of rounds in which it came" if found.observed else "its true p"
        note = f"After round {found.round + 1}: p̂ of each client against {what}; RMS error {error:.3g}."
        return Panel(figures.probabilities(found), note, f"{len(found.clients)} clients. {note}")

    def _lines(self, curves: Sequence[RunGroup], metric: str, axis: str, window: int = 1) -> list[Drawn]:
        found = [(curve.label, curve.style, line(self._source, curve, metric, axis, window)) for curve in curves[:MOST]]
        return [(label, style, one) for label, style, one in found if one is not None]

    def _diverged(self, curves: Sequence[RunGroup]) -> list[str]:
        """Say which curves end early, or have not even begun."""
        ended = [(curve, [info.diverged_in for info in curve.runs if info.diverged_in is not None]) for curve in curves]
        sentences = [f"{curve.label}: {diverged_text(rounds, len(curve.runs))}" for curve, rounds in ended if rounds]
        return (
            [f"{'; '.join(sentences[:3])}{' …' if len(sentences) > 3 else ''}. × marks where such a curve ends."]
            if sentences
            else []
        )

    def _ends(self, lines: Sequence[Drawn], metric: str) -> str:
        sentences = [
            f"{label}: {metric_text(metric, float(one.mean[-1]))} "
            + (f"before it {one.ending}" if one.ending else "at the end")
            for label, _, one in lines
        ]
        return "; ".join(sentences) + "."


def _group(name: str) -> int | None:
    number = name.removeprefix("accuracy_group")
    return int(number) if number != name and number.isdigit() else None
