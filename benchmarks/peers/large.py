"""The parts of docs/benchmarks.md about the server's pass over its rows and about large models on Flower."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.peers import machine

Ran = Callable[[dict[str, str]], str]
Rows = Sequence[Mapping[str, object]]
Bar = tuple[str, float, float]
"""What was held against a bar, what was seen, and the most that it may be."""

COMBINE = """\
## The server's pass

The time of one `combine` of FedStale with β = auto and of the default rule (tempered), statistics included, for
|S| = 12 of 24 clients and updates of d = 421,642 numbers in float32. Rows are kept in three precisions; the loops are
compiled (numba, the extra `fast`) or in NumPy. *over a memcpy*: relative to a memcpy of 3·|S|·d·4 bytes, taking turns
with it on one thread. Freed memory stays in the process, as in `simulate`. *first touch*: the mean of a new server's
first four combines, which write to memory that was never touched before; in the last line, what a plain memset of as
much fresh memory takes (a virtual machine may have to ask its host for every page, and then little else counts).
*AVX2, imitated*: a second process in which NumPy, OpenBLAS and numba were told to use no newer instructions; another
processor's caches and memory cannot be imitated. Targets that one run meets may be missed by the next where cores are
shared with other work.
"""
LARGE = """\
## Large models on Flower

The server's part of a round, compared with Flower's own FedAvg. All clients answer, in an in-process grid, so each
process also holds the clients' replies. Every contender is a separate process; they take turns round by round, and the
clients' work is not counted. *processor*: CPU time, median without the first two rounds. *saving*: one checkpoint.
*memory*: peak of resident memory including mapped files; *its own*: without mapped files, which the system may drop.
*rows on disk*: the length of the row file divided by that of a row. The cores and the disk were shared with other work,
so compare only the CPU times.
"""
SHARED = "Machine class: 2 cores, AVX-512, shared."
THIS = "this one"
"""The processor that a benchmark ran on, as it is."""


def verdicts(bars: Iterable[Bar]) -> list[tuple[str, str, str, str]]:
    """Each bar as text: what, seen, bar, met or not."""
    return [(what, f"{seen:.2f}", f"≤ {most:g}", "met" if seen <= most else "**missed**") for what, seen, most in bars]


def pass_bars(rows: Rows) -> list[Bar]:
    """What `benchmarks/server_step.py` measured against its bars."""
    bars: list[Bar] = []
    for processor, rule in dict.fromkeys((row["processor"], row["rule"]) for row in rows if row["rule"]):
        own = [row for row in rows if (row["processor"], row["rule"]) == (processor, rule) and row["loops"] == "numba"]
        seen = {(row["memory"], int(str(row["clients"]))): row for row in own}
        who = f"{rule}, compiled" if processor == THIS else f"{rule}, compiled, {processor}"
        for memory, most in (("float32", 1.5), ("bfloat16", 2.5), ("float16", 2.5)):
            bars.append((f"{memory}, {who}, over a memcpy", float(str(seen[memory, 24]["over memcpy"])), most))
        for memory in ("float32", "bfloat16", "float16"):
            one = seen[memory, 24]
            first = float(str(one["first touch ms"])) / float(str(one["ms"]))
            bars.append((f"{memory}, {who}, first touch over the steady state", first, 2.0))
        for memory in ("float32", "bfloat16", "float16", "float32 on disk"):
            few, many = (float(str(seen[memory, n]["ms"])) for n in (24, 100_000))
            bars.append((f"{memory}, {who}, N = 100,000 over N = 24", many / few, 1.1))
    return bars


def server_pass(folder: Path, ran: Ran) -> list[str]:
    """The part about one `combine`."""
    rows = machine.read(folder / "server-step.csv")
    if not rows:
        return []
    facts = machine.read_about(folder / "server-step-about.csv")
    lines = [COMBINE, f"{ran(facts)} {SHARED} Compiled loops could use {facts.get('threads', '2')} thread(s).", ""]
    for processor in dict.fromkeys(row["processor"] for row in rows):
        lines += [] if processor == THIS else [f"{processor}:", ""]
        lines += [
            "| rule | rows | loops | N | one combine | over a memcpy | first touch |",
            "|---|---|---|---|---|---|---|",
        ]
        lines += [_pass_line(row) for row in rows if row["processor"] == processor]
        lines += [""]
    return [*lines, *bar_table(pass_bars(rows)), ""]


def _pass_line(row: dict[str, str]) -> str:
    first = f"{float(row['first touch ms']):.1f} ms" if row["first touch ms"] else ""
    time, ratio, name = "", "", row["memory"].replace("|", "\\|")
    if row["ms"]:
        time = f"{float(row['ms']):.1f} ms [{float(row['low ms']):.1f}, {float(row['high ms']):.1f}]"
        ratio = f"{float(row['over memcpy']):.2f}×"
    count = f"{int(row['clients']):,}" if int(row["clients"]) else ""
    return f"| {row['rule']} | {name} | {row['loops']} | {count} | {time} | {ratio} | {first} |"


def model_bars(rows: Rows) -> list[Bar]:
    """What `benchmarks/large_models.py` measured against its bars."""
    bars: list[Bar] = []
    base = {row["params"]: row for row in rows if row["contender"] == "Flower's FedAvg"}
    for row in rows:
        name, params, clients = row["contender"], int(str(row["params"])), int(str(row["clients"]))
        size = f"{params / 1e6:g}M × {clients}, {name}"
        number = {key: float(str(value)) for key, value in row.items() if key not in ("contender",)}
        if name == "Flower's FedAvg":
            continue
        if row["params"] in base:
            ratio = number["cpu"] / float(str(base[row["params"]]["cpu"]))
            bars.append((f"{size}: processor time over FedAvg's", ratio, 2.0))
        most = 3.5 if params <= 25_000_000 else 10.0
        bars.append((f"{size}: memory [GB]", number["peak"] / 1e9, most))
        if number["resume peak"]:
            bars.append((f"{size}: memory when resumed [GB]", number["resume peak"] / 1e9, most))
        if number["row bytes"]:
            bars.append((f"{size}: rows on disk", number["row bytes"] // (4 * params), 2.0 * clients + 2))
    return bars


def large_models(folder: Path, ran: Ran) -> list[str]:
    """The part about large models."""
    rows = machine.read(folder / "large-models.csv")
    if not rows:
        return []
    lines = [LARGE, ran(machine.read_about(folder / "large-models-about.csv")) + " " + SHARED, ""]
    lines += ["| size | | rounds | processor | first round | saving | memory | its own | on disk | resume | resumed |"]
    lines += ["|---|---|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        saving, resume = (
            f"{float(row[f'{what} cpu']):.2f} s, {float(row[f'{what} wall']):.1f} s elapsed"
            if float(row[f"{what} wall"])
            else ""
            for what in ("save", "resume")
        )
        disk, resumed = (
            f"{float(row[key]) / 1e9:.2f} GB" if float(row[key]) else "" for key in ("disk", "resume peak")
        )
        lines.append(
            f"| {int(row['params']):,} × {row['clients']} | {row['contender']} | {row['rounds']} | "
            f"{float(row['cpu']):.2f} s | {float(row['first cpu']):.2f} s | {saving} | "
            f"{float(row['peak']) / 1e9:.2f} GB | {float(row['own']) / 1e9:.2f} GB | {disk} | {resume} | {resumed} |"
        )
    return [*lines, "", *bar_table(model_bars(rows)), ""]


def bar_table(bars: Iterable[Bar]) -> list[str]:
    """What was seen against what was wanted, as a table."""
    return ["| what | seen | bar | |", "|---|---|---|---|", *("| " + " | ".join(bar) + " |" for bar in verdicts(bars))]
