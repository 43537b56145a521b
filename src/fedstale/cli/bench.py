"""`fedstale bench`: the benchmark of uneven participation, run, checked and shown."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..checks import InvalidInput, counted, fail
from ..durable import replacing
from ..terminal import duration, make_console
from . import complete
from .group import CommandGroup
from .options import Json, Patience, Quiet, StorePath, print_json, say
from .sweep import Ray, Workers, executor, say_on_interrupt

if TYPE_CHECKING:
    from ..bench import BenchSetting, Check, ResultRow, Seeds, Standing
    from ..simulation.methods import Method
    from ..sweeps import SweepProgress

app = typer.Typer(cls=CommandGroup, no_args_is_help=True, help="The benchmark: list, run, verify, table.")

Names = Annotated[
    str | None,
    typer.Option(
        "--settings",
        help='Settings, separated by commas: "digits/two-groups", all of a task ("digits"), all of an availability '
        '("bursts"). Default: all.',
    ),
]
Rules = Annotated[
    str | None,
    typer.Option(
        "--rules",
        help="Rules, separated by commas, as for compare; U-FedAvg and everybody are added. Default: every rule.",
        autocompletion=complete.methods,
    ),
]
_Quick = Annotated[bool, typer.Option("--quick", help="Two settings, one seed for choosing, two for judging.")]
_Files = Annotated[list[Path] | None, typer.Argument(metavar="[FILE]...", show_default=False)]
_FOLDER = Path("docs/results/bench")
_CAPTION = (
    "rank: by the objective, mean over settings; gap closed in %: 0 is U-FedAvg, 100 everybody in every round; "
    "accuracy: points more than U-FedAvg; noise: of the update, relative; kB: memory of the server"
)


@app.command("list")
def list_(json: Json = False) -> None:
    """List the settings: what is learned, who comes, for how many rounds, and whether the data are here."""
    from rich.table import Table

    from ..bench import settings_named, why_not

    rows = [
        {"setting": one.name, "clients": one.learned.clients, "rounds": one.rounds, "quick": one.quick}
        | {"missing": why_not(one)}
        for one in settings_named(None)
    ]
    if json:
        print_json(rows)
        return
    table = Table()
    for heading in ("setting", "clients", "rounds", "quick", "data"):
        table.add_column(heading, justify="right" if heading in ("clients", "rounds") else "left")
    for row in rows:
        quick = "yes" if row["quick"] else ""
        table.add_row(
            str(row["setting"]), str(row["clients"]), str(row["rounds"]), quick, str(row["missing"]) or "here"
        )
    make_console().print(table)


@app.command()
def run(
    quick: _Quick = False,
    settings: Names = None,
    rules: Rules = None,
    store: StorePath = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Table of results; lines of other runs stay in it.")] = Path(
        "fedstale-bench.csv"
    ),
    workers: Workers = None,
    ray: Ray = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be run and how long it takes.")] = False,
    patience: Patience = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Run settings × rules: rates chosen on some seeds, judged on others; the same command continues.

    Every rule gets its own best rate. Runs are kept in the store, and each setting's lines are written as soon as they
    are complete.
    """
    from ..bench import QUICK, BenchRun, bench_methods, read, settings_named
    from ..store import Store

    chosen = settings_named(settings)
    if quick and settings is None:
        chosen = [one for one in chosen if one.quick]
    methods = bench_methods(rules)
    seeds = QUICK if quick else None
    if dry_run:
        _show_costs(chosen, methods, seeds, json=json)
        return
    if out.suffix != ".csv":
        raise fail("--out", str(out), "must end in .csv")
    began = time.monotonic()
    with Store.open(store, patience=patience) as opened, _bar(chosen, quiet=quiet or json) as bar:
        where = executor(workers, ray)
        work = BenchRun(chosen, methods, opened, out, where, seeds, bar.report)
        done = []
        for setting in work.run():
            bar.finished(setting)
            done.append(setting.name)
    if json:
        print_json({"out": str(out), "settings": done, "skipped": work.skipped, "seconds": time.monotonic() - began})
        return
    for name, reason in work.skipped.items():
        say(f"{name} was left out: {reason}", err=True)
    if done:
        _show(read([out]))
        say(f"{counted(len(done), 'setting')} in {duration(time.monotonic() - began)}; results: {out}")


@app.command()
def verify(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...")],
    sample: Annotated[
        int, typer.Option("--sample", min=1, help="Number of runs to do again; first seeds come on top.")
    ] = 5,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Draws the sample; default: by the clock.")] = None,
    json: Json = False,
) -> None:
    """Check tables of results: numbers follow from their seeds, and a random sample of the runs comes out the same.

    FILE is one or several tables that `bench run` wrote. The ends of each gap must be those of the lines of U-FedAvg
    and everybody; where the tables have none, these are run again for the settings of the sample, rates included. With
    the same code on the same kind of machine the bits must be the same; elsewhere rounding is allowed for. Exit code 1
    where a number is wrong.
    """
    from ..bench import following, gap_ends, quick, sampled, sound

    lines = _results(files, "verify")
    sound(lines)
    if (short := len(quick(lines))) and not json:
        say(f"{counted(short, 'line')} of --quick: not for the leaderboard")
    drawn = time.time_ns() % 2**32 if seed is None else seed
    runs = sampled(lines, sample, drawn)
    checks = [*following(lines), *gap_ends(lines, lines)]
    for one in _again(lines, runs, say=(lambda text: None) if json else say):
        checks += one
    wrong = [check for check in checks if not check.holds]
    if json:
        rows = [{"where": one.where, "what": one.what, "stated": one.stated, "found": one.found} for one in wrong]
        print_json({"seed": drawn, "checked": len(checks), "wrong": rows})
    else:
        for check in wrong:
            say(f"  {check.where}: {check.what} is stated as {check.stated!r} and is {check.found!r}", err=True)
        say(f"{counted(len(wrong), 'wrong number')} of {len(checks):,} (sample drawn with --seed {drawn})")
    if wrong:
        raise typer.Exit(1)


def _again(
    lines: Sequence[ResultRow], runs: Sequence[tuple[ResultRow, int]], *, say: Callable[[str], None]
) -> Iterator[list[Check]]:
    """Do runs again, and those between which their gaps lie where no line has them; say of each how it came out."""
    from ..bench import ends_again, gap_ends, rerun, runnable, without_ends
    from ..bench.verify import difference

    for line, _ in runs:
        runnable(line)  # before anything is run
    bare = without_ends(lines, lines)
    done: set[tuple[str, str]] = set()
    for line, position in runs:
        where = line.setting, line.row["seeds"]
        if where not in done and any(line is one for one in bare):
            done.add(where)
            say(f"{line.setting}: no lines of U-FedAvg and everybody: they are run again")
            yield gap_ends([one for one in bare if (one.setting, one.row["seeds"]) == where], ends_again(line))
        found = rerun(line, position)
        other = difference(line)
        how = "same bits" if other is None else f"same but for rounding ({other})"
        say(f"{found[0].where}: " + (how if all(check.holds for check in found) else "DIFFERS"))
        yield found


def _results(paths: Sequence[Path], purpose: str) -> list[ResultRow]:
    """Read tables, in which at least one rule ran."""
    from ..bench import read

    lines = read(paths)
    if not any(line.ran for line in lines):
        raise InvalidInput(f"{', '.join(map(str, paths))}: no line has results: there is nothing to {purpose}")
    return lines


@app.command()
def table(
    files: _Files = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the whole page as Markdown to this file.")
    ] = None,
    json: Json = False,
) -> None:
    """Show who stands where over all settings, or write the leaderboard page.

    FILE is one or several tables that `bench run` wrote; default: those in docs/results/bench.
    """
    from dataclasses import asdict

    from ..bench import page, result_files, standings

    paths = files or result_files(_FOLDER)
    if not paths:
        raise fail("FILE", None, f"there are no results in {_FOLDER}: name a table of `fedstale bench run`")
    lines = _results(paths, "show")
    if out is not None:
        text = page(paths)
        out.parent.mkdir(parents=True, exist_ok=True)
        with replacing(out) as unfinished:
            unfinished.write_text(text, encoding="utf-8")
        say(out)
    elif json:
        print_json([asdict(one) for one in standings(lines)])
    else:
        _show(lines)


def _show(lines: Sequence[ResultRow]) -> None:
    """Print the standings in 80 columns."""
    from rich.table import Table

    from ..bench import standings

    found = standings(lines)
    shown = Table(padding=(0, 1), caption=_CAPTION)
    for heading in ("rule", "rank", "settings", "gap closed", "accuracy", "noise", "kB"):
        shown.add_column(heading, justify="left" if heading == "rule" else "right", no_wrap=heading != "rule")
    for one in found:
        shown.add_row(*_row(one))
    make_console().print(shown)


def _row(one: Standing) -> tuple[str, ...]:
    from ..bench.leaderboard import kilobytes

    closed = "–" if one.closed is None else one.closed.mean.short()
    noise = "–" if one.noise != one.noise else f"{one.noise:.2g}"
    numbers = closed, one.accuracy.short(sign=True), noise, kilobytes(one.memory)
    return one.label, f"{one.rank.mean:.1f}", str(one.ran), *numbers


def _show_costs(
    settings: Sequence[BenchSetting], methods: Sequence[Method], seeds: Seeds | None, *, json: bool
) -> None:
    from rich.table import Table

    from ..bench import why_not
    from ..bench.cost import cost

    rows: list[dict[str, Any]] = []
    for setting in settings:
        reason = why_not(setting)
        found = None if reason else cost(setting, methods, seeds or setting.seeds)
        rows.append(
            {"setting": setting.name, "runs": found.runs if found else 0, "seconds": found.seconds if found else 0.0}
            | {"left_out": reason}
        )
    total = sum(row["seconds"] for row in rows)
    if json:
        print_json({"settings": rows, "cpu_seconds": total})
        return
    table = Table(caption="CPU time of one core; with several workers, divide")
    for heading in ("setting", "runs", "CPU time"):
        table.add_column(heading, justify="left" if heading == "setting" else "right")
    for row in rows:
        table.add_row(row["setting"], str(row["runs"]), row["left_out"] or duration(row["seconds"]))
    make_console().print(table)
    runs = counted(sum(row["runs"] for row in rows), "run")
    say(
        f"{counted(len(methods), 'rule')}, {counted(len(rows), 'setting')}, {runs}, about {duration(total)} of CPU time"
    )


class _Bar:
    """One bar for everything: the setting, its runs, and the time left by the settings that are still to come."""

    def __init__(self, settings: Sequence[BenchSetting], show: Callable[[float, str, str], None]) -> None:
        self._weights = {one.name: float(one.rounds * one.learned.clients) for one in settings}
        self._done: list[str] = []
        self._show, self._began, self._part = show, time.monotonic(), 0.0

    def report(self, what: str, progress: SweepProgress) -> None:
        """Show how a part of a setting stands."""
        name, _, part = what.partition(": ")
        share = progress.worked / progress.work if progress.work else 1.0
        half = 0.6 if part == "rates" else 0.0
        self._part = max(self._part, half * share if half else 0.6 + 0.4 * share)
        total = sum(self._weights.values())
        done = sum(self._weights[each] for each in self._done) + self._weights[name] * self._part
        left = (time.monotonic() - self._began) * (total - done) / done if done else float("nan")
        runs = f"{progress.stored + progress.done}/{progress.total}"
        text = f"{runs}" + ("" if left != left else f", {duration(left)} left")
        self._show(done / total, f"{len(self._done) + 1}/{len(self._weights)} {what}", text)

    def finished(self, setting: BenchSetting) -> None:
        """Note that a setting is complete."""
        self._done.append(setting.name)
        self._part = 0.0


@contextmanager
def _bar(settings: Sequence[BenchSetting], *, quiet: bool) -> Iterator[_Bar]:
    if quiet:
        with say_on_interrupt():
            yield _Bar(settings, lambda done, what, text: None)
        return
    from rich.progress import BarColumn, Progress, TextColumn

    columns = [TextColumn("{task.description}"), BarColumn(bar_width=12), TextColumn("{task.fields[text]}")]
    with say_on_interrupt(), Progress(*columns, console=make_console(err=True)) as bars:
        task = bars.add_task("bench", total=1.0, text="")

        def show(done: float, what: str, text: str) -> None:
            bars.update(task, completed=done, description=what, text=text)

        yield _Bar(settings, show)
