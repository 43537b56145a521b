"""The tables of a report: what it is about, the comparison, runs that failed, the claims."""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .. import __version__, configs
from ..analysis import Cell, verdicts
from ..analysis.metrics import TITLES, group_name, short_title
from ..analysis.table import value_text
from ..simulation.settings import Settings
from ..store import RunInfo, Store
from ..tasks.defaults import full_name, used_rate
from .conclusion import BEYOND, leader
from .markup import Markup, table, tag, text
from .study import Study, by_objective
from .subject import Subject

_ROWS = 600
"""A longer comparison is cut: that many rows are for `fedstale runs export`."""
_LISTED = 50
_VERDICTS = {verdicts.HELD: "yes", verdicts.NOT_HELD: "no", verdicts.NOT_DECIDED: "open", verdicts.AT_EDGE: "open"}


def facts(subject: Subject, store: Store, seeds: Sequence[int]) -> Markup:
    """What, when, with which versions."""
    counts = Counter(info.status for info in subject.infos)
    runs = ", ".join(f"{count:,} {status}" for status, count in counts.items()) or "none"
    rows: list[tuple[str, object]] = [(subject.kind, subject.name)]
    if subject.kind != "store":
        rows.append(("store", store.folder.name))
    if subject.kind == "run":
        info = subject.infos[0]
        rows.append(("id", info.id))
        how = info.reason if info.ended else info.status
        rows.append(("status", f"{how}, {info.rounds_done:,} of {info.rounds_total or '?'} rounds"))
    else:
        rows.append(("runs", runs))
    if subject.infos:
        first = min(info.created for info in subject.infos)
        rows.append(("from – to", f"{moment(first)} – {moment(max(info.updated for info in subject.infos))} UTC"))
    sweeps = dict.fromkeys(info.sweep for info in subject.infos if info.sweep)
    if subject.kind != "sweep" and sweeps:
        rows.append(("sweeps" if len(sweeps) > 1 else "sweep", ", ".join(sweeps)))
    tasks = dict.fromkeys(
        configs.text(full_name(info.config["task"])) for info in subject.infos if "task" in info.config
    )
    if tasks:
        rows.append(("learned", ", ".join(tasks)))
    if seeds:
        rows.append(
            (
                "seeds" if len(seeds) > 1 else "seed",
                ", ".join(map(str, seeds[:12])) + (", …" if len(seeds) > 12 else ""),
            )
        )
    made = f"{moment(time.time())} UTC by fedstale {__version__}, Python {platform.python_version()}, "
    rows.append(("report", made + f"NumPy {np.__version__}"))
    return tag("dl", [text(tag("dt", name), tag("dd", value)) for name, value in rows], class_="facts")


def setting(values: dict[str, Any], caption: str) -> Markup | None:
    """A table of settings."""
    rows = [
        tag("tr", tag("th", name, scope="row"), tag("td", value_text(value)), tag("td", _meaning(name), class_="dim"))
        for name, value in values.items()
    ]
    return table(caption, ("setting", "value", "what it is"), rows) if rows else None


def _meaning(name: str) -> str:
    field = Settings.model_fields.get(name)
    return (field.description or "") if field is not None else ""


def comparison(study: Study) -> Markup:
    """Every method in every place: mean ± standard error over seeds."""
    grouped = any(cell.has("accuracy_group1") for cell in study.cells)
    worst = any(cell.has("accuracy_worst_decile") for cell in study.cells)
    with_beta = any(cell.has("beta") for cell in study.cells)
    several = len({cell.lr for cell in study.cells}) > 1 or any(len(cell.rates) > 1 for cell in study.cells)
    headings = [*study.keys, "method", short_title(study.metric)]
    headings += ["objective"] if study.has_objective else []
    gaps = {id(cell): closed for cell in study.cells if (closed := study.gap_closed(cell)) is not None}
    headings += ["gap closed"] if gaps else []
    headings += [group_name(0), group_name(1)] if grouped else []
    headings += ["worst tenth"] if worst else []
    headings += [*(["β"] if with_beta else []), *(["learning rate"] if several else []), "seeds"]
    rows: list[Markup] = []
    for mine in study.conditions.values():
        best = leader(mine)
        losses = [by_objective(cell) for cell in mine] if study.has_objective else []
        least = leader(losses)
        for k, cell in enumerate(mine):
            condition = [] if k else study.condition(cell)
            row = [tag("th", value_text(value), scope="row", rowspan=len(mine)) for _, value in condition]
            lost = [_objective(losses[k], least)] if losses else []
            lost += [tag("td", format(gaps[id(cell)], ".0%") if id(cell) in gaps else "–", class_="n")] if gaps else []
            names = ["accuracy_group0", "accuracy_group1"] * grouped + ["accuracy_worst_decile"] * worst
            numbers = _numbers(cell, best, [*names, *["beta"] * with_beta], accurate=study.accurate)
            row += [*numbers[:2], *lost, *numbers[2:]]
            if several:
                row.append(tag("td", _rate(cell), class_="n"))
            row.append(tag("td", len(cell.runs), class_="n"))
            rows.append(tag("tr", row, class_=None if k else "first"))
    left_out = len(rows) - _ROWS
    right = set(headings) - {*study.keys, "method"}
    made = table(_caption(study, several=several, gaps=bool(gaps)), headings, rows[:_ROWS], right)
    if left_out > 0:
        made = text(made, tag("p", f"{left_out:,} further rows are left out: fedstale runs export has all runs."))
    if len(rows) <= 60:
        return made
    return tag("details", tag("summary", f"The comparison, {min(len(rows), _ROWS):,} rows"), made)


def _caption(study: Study, *, several: bool, gaps: bool) -> str:
    what = TITLES[study.metric].removesuffix(" F(w) − F(w*)")
    caption = f"{what}: mean over the evaluations in the last tenth of the rounds, ± standard error over seeds. "
    caption += "Objective: the same of the training loss over all clients. " if study.has_objective else ""
    if gaps:
        caption += "Gap closed: how much of what absence costs is won back, by the objective; 0 % is U-FedAvg, "
        caption += "100 % is everybody in every round (p_min 1). "
    caption += f"Bold: ahead of every other method of its setting {BEYOND}. "
    return caption + ("Each method is shown at its best learning rate." if several else "")


def _objective(cell: Cell, least: Cell | None) -> Markup:
    own = cell.estimate
    shown = "–" if own.diverged else f"{replace(own, mean=-own.mean):.3f}"
    return tag("td", tag("b", shown) if cell is least else shown, class_="n")


def _numbers(cell: Cell, best: Cell | None, names: Sequence[str], *, accurate: bool) -> list[Markup]:
    own = cell.estimate
    shown = f"{own:.1%}" if accurate else f"{replace(own, mean=-own.mean):.3g}"
    # That seeds diverged is said once, in the first column.
    more = [
        "–" if own.diverged else format(cell.over_seeds(name), ".2f" if name == "beta" else ".1%") for name in names
    ]
    first = tag("td", tag("b", shown) if cell is best else shown, class_="n")
    return [tag("td", cell.method, class_="w"), first, *(tag("td", number, class_="n") for number in more)]


def _rate(cell: Cell) -> str:
    used = used_rate(cell.settings.record())
    rate = "the task's" if used is None else f"{used:.4g}"
    return rate if len(cell.rates) < 2 else f"{rate} (of {len(cell.rates)})"


def troubles(infos: Sequence[RunInfo]) -> Markup | None:
    """Runs that are not finished, or ended otherwise than in their last round."""
    ended = [info for info in infos if info.status != "finished"]
    if not ended:
        return None
    ended.sort(key=lambda info: info.status == "diverged")  # what can be run again comes first
    rows = [
        tag(
            "tr",
            tag("th", info.name or info.id, scope="row"),
            tag("td", info.status),
            tag("td", f"{info.rounds_done:,} of {info.rounds_total or '?'}", class_="n"),
            tag("td", info.reason if info.reason != info.status else ""),
        )
        for info in ended[:_LISTED]
    ]
    caption = "Runs that did not reach their last round" + (
        f": the first {_LISTED} of {len(ended):,}" if len(ended) > _LISTED else ""
    )
    return table(caption, ("run", "status", "rounds", "message"), rows, ("rounds",))


def plain_runs(infos: Sequence[RunInfo]) -> Markup:
    """Runs of something else than the simulator, by what they recorded last."""
    count = Counter(name for info in infos for name in info.summary)
    names = [name for name, _ in count.most_common(6)]
    rows = [
        tag(
            "tr",
            tag("th", info.name or info.id, scope="row"),
            tag("td", info.rounds_done, class_="n"),
            [tag("td", _number(info.summary.get(name)), class_="n") for name in names],
        )
        for info in infos[:_LISTED]
    ]
    caption = "Other runs, with the last value of what they recorded"
    if len(infos) > _LISTED:
        caption += f": the newest {_LISTED} of {len(infos):,}"
    return table(caption, ("run", "rounds", *names), rows, ("rounds", *names))


def _number(value: float | None) -> str:
    return "–" if value is None or not np.isfinite(value) else f"{value:.4g}"


def claims_table(claims: Sequence[verdicts.Claim]) -> Markup:
    """Claims with what was measured of them."""
    lines = [
        tag(
            "tr",
            *(tag("td", text) for text in claim.cells()[:-1]),
            tag("td", tag("span", claim.verdict, class_=f"verdict {_VERDICTS[claim.verdict]}")),
        )
        for claim in claims
    ]
    caption = f"The claims of the paper, and what the runs of this store show. {verdicts.EXPLANATION}"
    return table(caption, verdicts.HEADINGS, lines)


def moment(seconds: float) -> str:
    """A time to the minute."""
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds))


def heading(study: Study) -> str:
    """What the shown conditions are, in words."""
    shown, every = len(study.shown()), len(study.conditions)
    return "" if shown == every else f"{shown} of {every} settings: " + "; ".join(study.shown())
