"""The parts of docs/benchmarks.md about growth and about the million clients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks.peers import machine

Ran = Callable[[dict[str, str]], str]

MILLION = """\
## A million clients

Logistic regression with d = 10,000 on samples generated from (seed, client). The rule is FedStale with β = auto in the
public `Simulation`; its memory is a sparse file in bfloat16.
"""
BOUND = """\
The server's own memory consists of arrays of length N (slots, masses, last participation, probabilities, checksums:
about 60 bytes per client) and of the participants' updates (|S|·d·4 bytes); it does not grow with N·d. The rows are in
the file. Mapped rows count as resident while the system has room for them, and the system may drop them at any time.
A checkpoint writes the rows that changed since the last one, and loading it verifies every row.
"""

GROWTH = """\
## Growth

Time per round and memory of the server's part, on one core: participants, FedStale's `combine` with β = auto, estimator
and metrics, in the public `Simulation`. Local training is replaced by an array that is prepared beforehand. Each figure
varies one number and keeps the others at their defaults; the points of a curve take turns, and medians are shown.
Memory is what the rule keeps (`server_bytes`). With a large N, nearly every participant comes for the first time, so
its row is memory that was never touched before. Apart from that, only a few passes over one number per client depend
on N: who is available, and the mean age of the memory.
"""


def million(folder: Path, ran: Ran) -> list[str]:
    """The million-client run."""
    rows = {row["what"]: float(row["value"]) for row in machine.read(folder / "million.csv")}
    if not rows:
        return []
    facts = machine.read_about(folder / "million-about.csv")
    curve = {int(name[4:]): value for name, value in rows.items() if name.startswith("N = ")}
    lines = [MILLION, ran(facts), "", "| what | |", "|---|---|"]
    shown = {
        "clients": "{:,.0f}",
        "parameters": "{:,.0f}",
        "participants": "{:,.0f} a round",
        "rounds": "{:,.0f}",
        "clients seen": "{:,.0f}",
        "seconds a round": "{:.3f} s (median)",
        "seconds a round, last tenth": "{:.3f} s",
        "seconds of a checkpoint": "{:.1f} s",
        "wall seconds": "{:,.0f} s in all, start and checkpoints included",
        "accuracy": "{:.1%} at the end",
    }
    lines += [f"| {name} | {form.format(rows[name])} |" for name, form in shown.items() if name in rows]
    sizes = ("own bytes at most", "mapped bytes at most", "bytes on disk")
    names = ("the server's own resident memory, at most", "mapped rows in memory, at most", "row file on disk")
    lines += [f"| {name} | {rows[key] / 2**20:,.0f} MiB |" for key, name in zip(sizes, names, strict=True)]
    if "killed after round" in rows:
        same = "yes" if rows["same bits after kill -9 and resume"] else "**no**"
        lines.append(
            f"| kill -9 after round {rows['killed after round']:.0f}, resumed from the checkpoint of round "
            f"{rows['resumed from round']:.0f} (loaded and verified in {rows['seconds to load']:.1f} s): same bits "
            f"at the end | {same} |"
        )
    lines += ["", BOUND]
    if curve:
        first = curve[min(curve)]
        worst = max(curve.values()) / min(curve.values())
        lines += ["| N | " + " | ".join(f"{n:,}" for n in sorted(curve)) + " |", "|---|" + "---|" * len(curve)]
        lines += ["| seconds a round | " + " | ".join(f"{curve[n]:.3f}" for n in sorted(curve)) + " |"]
        lines += [
            f"| over N = {min(curve):,} | " + " | ".join(f"{curve[n] / first:.2f}×" for n in sorted(curve)) + " |"
        ]
        verdict = "met" if worst <= 1.3 else "**not met**"
        lines += ["", f"Largest over smallest: {worst:.2f}×; bar: flat in N to within 1.3×: {verdict}.", ""]
    return lines


def growth(folder: Path, images: Path, ran: Ran) -> list[str]:
    """The growth curves."""
    rows = machine.read(folder / "growth.csv")
    if not rows:
        return []
    facts = machine.read_about(folder / "growth-about.csv")
    lines = [GROWTH, ran(facts), ""]
    if "first touch of 4 MB" in facts:
        first, again = (1e3 * float(facts[f"{which} touch of 4 MB"]) for which in ("first", "second"))
        text = f"Writing 4 MB, the rows of 100 participants: {first:.1f} ms the first time, {again:.1f} ms the second."
        lines += [text, ""]
    for curve in dict.fromkeys(row["curve"] for row in rows):
        own = [row for row in rows if row["curve"] == curve]
        lines += [f"### {own[0]['title']}", ""]
        if (images / f"growth-{curve}.png").exists():
            lines += [f"![{own[0]['title']}](images/growth-{curve}.png)", ""]
        values = sorted({float(row["value"]) for row in own})
        lines += ["| | " + " | ".join(f"{value:,.0f}" for value in values) + " |", "|---|" + "---|" * len(values)]
        for series in dict.fromkeys(row["series"] for row in own):
            found = {float(row["value"]): row for row in own if row["series"] == series}
            cells = [_cell(found[value]) if value in found else "" for value in values]
            lines.append(f"| {series} | " + " | ".join(cells) + " |")
        lines.append("")
    return lines


def _cell(row: dict[str, str]) -> str:
    seconds, size = float(row["seconds"]), float(row["bytes"])
    time = f"{seconds:.3g} s" if seconds >= 0.9995 else f"{1e3 * seconds:.3g} ms"
    return f"{time}, {size / 2**20:,.3g} MiB" if size else time
