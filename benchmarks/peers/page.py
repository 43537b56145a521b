"""Write docs/benchmarks.md from the results that lie in docs/results/benchmarks.

    python -m benchmarks.peers.page [--docs DOCS]

Every benchmark calls this when it ends; a part whose results are not there is left out.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.peers import growing, large, machine, tables
from benchmarks.peers.environments import ROOT
from benchmarks.peers.tables import BETTER_FLOWER, OURS, Summary

TITLES = {
    "cnn": "(a) the paper's MNIST CNN: 421,642 parameters, 24 clients, all in every round, K = 5, batch 128",
    "logistic": "(b) logistic regression on MNIST: 1,000 clients of 60 samples, 10 a round, 1 epoch, batch 10, T = 100",
    "digits": "(c) MLP 64-32-10 on the digits: 24 clients, all in every round, K = 5, batch 32, 500 rounds",
}
EVALUATIONS = {"cnn": "3", "logistic": "10", "digits": "10"}
NEVER_AHEAD = ("fedstale",)
Apart = dict[str, tuple[int, dict[str, float]]]

INTRODUCTION = """\
# Benchmarks

The benchmark scripts write this page from their own results: `make bench-peers` (the comparison),
`benchmarks/profile_rounds.py`, `benchmarks/engines.py`, `benchmarks/server_step.py`, `benchmarks/large_models.py`,
`benchmarks/million.py` and `benchmarks/growth.py`. The measurements are in `docs/results/benchmarks/`. Each table
comes from one machine, and ratios compare contenders that took turns in the same run.
"""

SIDE_BY_SIDE = """\
## Comparison with other frameworks

All contenders do the same work. They get the same shards (exported once by our task code) and the same initial model,
process the same number of samples (each contender counts them, and the counts are compared), and evaluate on the same
test data at the same interval. Each contender is one small script in `benchmarks/peers/`, and runs in its own process
and virtual environment, in a network namespace that has only the loopback device.

- *round*: median [quartiles] of the time of a round, without the first round.
- *with evaluation*: mean time of a round including evaluations, median over repetitions.
- *start*: from the start of the process to the end of the first round.
- *memory*: peak of the whole process tree; shared pages count once.
- *ratio*: the contender's time divided by ours (FedAvg in float32), for the median round and with evaluations.
- *accuracy*: at the end of the longest repetition. Each contender draws its own batches.
"""

DIFFERS = """\
**Differences between the contenders.**

- The peers train in float32 with torch's own convolutions. fedstale uses the loop engine with oneDNN's layout for (a)
  and the vectorised engine for (b) and (c), both chosen by `auto`, and keeps freed memory in the process (see below).
- The plain loop, pfl-research and fluke are one process with torch's default number of threads. Flower and fedstale
  train two clients in parallel.
- The plain loop and Flower's clients share one function for local training. Flower's actors keep data and model
  between messages. Flower's server and simulation engine poll every 0.1 s, so a round cannot be much shorter.
- pfl-research and fluke run their own local training, on batches that we draw by indexing (faster than their usual
  loaders). fluke keeps one model per client.
- fluke imports torchvision, which has no build for a torch without CUDA here. We declare the two compiled operators
  that the import needs, without an implementation; the timed code does not use them.
- FedStale does more work than the others: it reads and writes a stored update for every participant.
"""


def seconds(value: float) -> str:
    """Seconds with three digits."""
    return f"{value:.2f} s" if value >= 0.9995 else f"{1e3 * value:.3g} ms"


def comparison(results: list[tables.Entry], facts: dict[str, str], apart: Apart) -> list[str]:
    """The part with the peers."""
    lines = [SIDE_BY_SIDE, ran(facts), ""]
    for work, title in TITLES.items():
        found = tables.summaries(results, work)
        if found:
            lines += _table(work, title, found, apart.get(work))
    return [*lines, *_targets(results, facts), "", *_disagreements(results, apart), DIFFERS, *_versions(results)]


def _disagreements(results: list[tables.Entry], apart: dict[str, tuple[int, dict[str, float]]]) -> list[str]:
    """What the checks of equal work found: the page says it, whatever it is."""
    told, timed = tables.problems(results, apart), tables.problems(results)
    if told:
        return ["**Checks that failed**:", "", *(f"- {text}" for text in told), ""]
    agree = "**Checks.** All processed the same number of samples, and their accuracies agree within the tolerance."
    if not timed:
        return [agree, ""]
    early = "The timed runs are shorter: their accuracies still rise steeply, and these did not agree yet:"
    return [agree, early, "", *(f"- {text}" for text in timed), ""]


def ran(facts: dict[str, str]) -> str:
    return (
        f"`{facts['command']}`, {facts['date']}: {facts['cores']} cores ({facts['instructions']}; bfloat16 "
        f"instructions: {facts['bfloat16']}), {facts['memory']}, {facts['system']}, Python {facts['python']}, torch "
        f"{facts['torch']}, NumPy {facts['numpy']}.{' ' + facts['note'] if 'note' in facts else ''}"
    )


def _table(
    work: str, title: str, found: dict[str, Summary | str], apart: tuple[int, dict[str, float]] | None
) -> list[str]:
    ours = found.get(OURS)
    note = f" Accuracies: after {apart[0]} rounds, in runs of their own." if apart else ""
    lines = [f"### {title}", "", f"Evaluated every {EVALUATIONS[work]} rounds.{note}", ""]
    lines += ["| contender | round | with evaluation | ratio | start | memory | accuracy | rounds timed |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for name, one in found.items():
        if isinstance(one, str):
            lines.append(f"| {name} | does not run: `{one}` | | | | | | |")
            continue
        ratio = "–"
        if isinstance(ours, Summary):
            ratio = f"{one.seconds / ours.seconds:.2f}×, {one.mean / ours.mean:.2f}×"
        accuracy = f"{one.accuracy:.1%}"
        if apart:
            accuracy = f"{apart[1][name]:.1%}" if name in apart[1] else "–"
        spread = f"{seconds(one.seconds)} [{seconds(one.low)}, {seconds(one.high)}]"
        lines.append(
            f"| {name} | {spread} | {seconds(one.mean)} | {ratio} | {one.startup:.1f} s | "
            f"{one.peak / 2**20:,.0f} MiB | {accuracy} | {one.rounds} in {one.repetitions} |"
        )
    shares = [
        f"{name}: local training {one.training_share:.1%}, evaluation {one.evaluation_share:.1%}, everything else "
        f"(the server's part) {1 - one.training_share - one.evaluation_share:.2%} of the time"
        for name, one in found.items()
        if isinstance(one, Summary) and one.training_share == one.training_share
    ]
    return [*lines, "", *(f"{text}.  " for text in shares), ""]


def verdicts(results: list[tables.Entry]) -> list[tuple[str, float, str, bool]]:
    """What was asked for, what was seen, the bar, whether it was met."""
    told: list[tuple[str, float, str, bool]] = []
    letters = {"cnn": "a", "logistic": "b", "digits": "c"}
    for work, letter in letters.items():
        found = tables.summaries(results, work)
        ours = found.get(OURS)
        if not isinstance(ours, Summary):
            continue
        peers = [one for name, one in found.items() if isinstance(one, Summary) and not name.startswith(NEVER_AHEAD)]
        if peers:
            nearest = min(peers, key=lambda one: one.mean)
            ratio = nearest.mean / ours.mean
            told.append((f"({letter}) ahead of every peer; nearest: {nearest.contender}", ratio, "> 1", ratio > 1))
        flower = found.get(BETTER_FLOWER)
        if isinstance(flower, Summary):
            ratio, bar = flower.mean / ours.mean, 1.5 if work == "cnn" else 10.0
            told.append((f"({letter}) against Flower, 2 actors × 1 thread", ratio, f"≥ {bar:g}", ratio >= bar))
        half = found.get("fedstale, FedAvg, bfloat16")
        if isinstance(half, Summary) and isinstance(flower, Summary):
            ratio = flower.mean / half.mean
            told.append((f"({letter}) bfloat16 against the same (float32)", ratio, "≥ 2.5", ratio >= 2.5))
        for name in (OURS, "fedstale, FedStale β = auto"):
            one = found.get(name)
            if work == "cnn" and isinstance(one, Summary):
                share = 1 - one.training_share - one.evaluation_share
                told.append((f"({letter}) the server's share of a round, {name}", share, "< 0.05", share < 0.05))
    return told


def _targets(results: list[tables.Entry], facts: dict[str, str]) -> list[str]:
    lines = ["### Targets that were set beforehand", "", "| what | measured | target | |", "|---|---|---|---|"]
    for what, value, bar, met in verdicts(results):
        lines.append(f"| {what} | {value:.3g} | {bar} | {'met' if met else '**not met**'} |")
    lines += ["", "Ratios include evaluations."]
    if facts["bfloat16"] == "no":
        lines.append(NO_BFLOAT16)
    return lines


NO_BFLOAT16 = """\
This processor has no bfloat16 instructions, so torch emulates them. The bfloat16 target needs a processor with
AVX512-BF16 or AMX; on others `precision="bfloat16"` prints a warning.\
"""


def _versions(results: list[tables.Entry]) -> list[str]:
    seen: dict[str, dict[str, str]] = {}
    for entry in results:
        if "versions" in entry:
            seen.setdefault(entry["contender"].split(",")[0], entry["versions"])
    told = [f"{name}: " + ", ".join(f"{key} {value}" for key, value in found.items()) for name, found in seen.items()]
    return ["**Versions.** " + "; ".join(told) + ".", ""]


def share_bars(rows: list[dict[str, str]]) -> list[large.Bar]:
    """The share of the server and of bookkeeping in a round of the small models, and the most that it may be."""
    small = [row for row in rows if row["work"] != "cnn" and row["version"] == "now"]
    return [
        (
            f"{row['work']}, {row['rule']}: server and bookkeeping, share of a round",
            float(row["server"]) + float(row["bookkeeping"]),
            0.1,
        )
        for row in small
    ]


PROFILES = {"profile": ("logistic", "digits"), "profile-cnn": ("cnn",)}
"""Files of `benchmarks/profile_rounds.py`, and the works in each: small models take minutes less."""
SPANS = "*batches*: drawing the participants' batches. *bookkeeping*: participants, probabilities, metrics, records."


def profile(rows: list[dict[str, str]], facts: dict[str, str]) -> list[str]:
    """The part that says where our time goes."""
    spans = ("local training", "batches", "server", "evaluation", "bookkeeping")
    lines = [ran(facts), ""]
    lines += ["| work | rule | version | round, with evaluations | " + " | ".join(spans) + " | page faults a round |"]
    lines += ["|---|" + "---|" * 9]
    for row in rows:
        parts = " | ".join(f"{float(row[span]):.1%}" for span in spans)
        named = f"| {row['work']} | {row['rule']} | {row['version']} | {seconds(float(row['seconds']))} |"
        lines.append(f"{named} {parts} | {float(row['faults']):,.0f} |")
    bars = share_bars(rows)
    lines += ["", *([*large.bar_table(bars), ""] if bars else [])]
    now = {(row["work"], row["rule"]): float(row["seconds"]) for row in rows if row["version"] == "now"}
    ratios = [
        f"{row['work']}, {row['rule']}, {row['version']}: {float(row['seconds']) / now[row['work'], row['rule']]:.2f}×"
        for row in rows
        if row["version"] != "now"
    ]
    if ratios:
        lines += ["Time relative to the current version, interleaved:", "", *(f"- {text}" for text in ratios), ""]
    return lines


IMPROVED = """\
Changes that this profile led to:

- A step of the CNN allocates and frees tens of megabytes. glibc returns their pages to the system, and the next step
  has to touch every page again. `training/allocator.py` therefore keeps freed memory in the process, with two `mallopt`
  settings. `simulate` and the commands set them for the whole process, unless `keep_freed_memory` is False or malloc's
  environment variables are set.
- Test samples that are contiguous in memory are evaluated in place instead of being copied (`Engine.evaluate`).
- All rows of a small model are put into one block, widened at once and multiplied with one row of weights at a time, a
  call that takes half the time of one for two (`memory/kernel.py`).
- Rows on disk are sliced as plain arrays, because a slice of a `numpy.memmap` takes several times as long
  (`memory/rows.py`).
"""


def engines(rows: list[dict[str, str]], facts: dict[str, str]) -> list[str]:
    """The part that says which engine is faster for which model, and which one "auto" takes."""
    lines = ["## Which engine", "", ENGINES, "", ran(facts), ""]
    lines += [
        "| model | parameters | batch | participants of 24 | loop over vmap | auto takes | auto over the faster |"
    ]
    lines += ["|---|---|---|---|---|---|---|"]
    for row in rows:
        ratio, cost = float(row["loop over vmap"]), float(row["auto over best"])
        lines.append(
            f"| {row['model']} | {int(row['parameters']):,} | {row['batch']} | {row['participants']} | {ratio:.2f} | "
            f"{row['auto takes']} | {cost:.2f} |"
        )
    return [*lines, ""]


def flute(rows: list[dict[str, str]], facts: dict[str, str]) -> list[str]:
    """The work that FLUTE publishes times of, as a table of ours and theirs."""

    def clock(value: str) -> str:
        return f"{int(float(value)) // 60}:{int(float(value)) % 60:02d}"

    lines = ["## The whole work of FLUTE's comparison", ""]
    lines += [
        "Work (b), 100 rounds, from the start of a process to its end: Python, torch and the data are loaded, and the",
        "model is evaluated ten times. The times of FLUTE and of Flower 1.0.0 are those that FLUTE publishes for a CPU",
        "(LR_MNIST), **of another machine**: they say what order of magnitude one is used to, not who is faster.",
        "",
        ran(facts),
        "",
        "| | minutes:seconds |",
        "|---|---|",
    ]
    for row in rows:
        ours = row["lower quartile"] != ""
        spread = (
            f"{float(row['seconds']):.1f} s [{row['lower quartile'][:4]}, {row['upper quartile'][:4]}]" if ours else ""
        )
        name = f"fedstale, {row['what']}" if ours else row["what"]
        lines.append(f"| {name} | {spread or clock(row['seconds'])} |")
    return [*lines, ""]


ENGINES = """\
`engine="auto"` does not time anything during a run, because equal seeds must give equal bits. It decides by three
numbers (`training/registry.py`) that come from this table: dense networks with up to 200,000 parameters are vectorised
from two clients on, other models with up to 10,000 parameters from eight clients on, and everything else trains one
client after the other. The decision does not depend on the participants of a round, because they change from round to
round. *loop over vmap*: above 1, vmap is faster.\
"""


def render(docs: Path) -> None:
    """Write the page."""
    folder = docs / "results" / "benchmarks"
    lines = [INTRODUCTION]
    if (folder / "peers.csv").exists():
        facts = machine.read_about(folder / "peers-about.csv")
        lines += comparison(tables.read(folder), facts, tables.accuracies(folder))
    rows = machine.read(folder / "flute.csv")
    if rows:
        lines += flute(rows, machine.read_about(folder / "flute-about.csv"))
    profiles = {name: rows for name in PROFILES if (rows := machine.read(folder / f"{name}.csv"))}
    if profiles:
        lines += ["## Where our time goes", "", SPANS, ""]
        for name, rows in profiles.items():
            lines += profile(rows, machine.read_about(folder / f"{name}-about.csv"))
        lines += [IMPROVED]
    rows = machine.read(folder / "engines.csv")
    if rows:
        lines += engines(rows, machine.read_about(folder / "engines-about.csv"))
    lines += large.server_pass(folder, ran)
    lines += large.large_models(folder, ran)
    lines += growing.million(folder, ran)
    lines += growing.growth(folder, docs / "images", ran)
    text = "\n".join(lines)
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    (docs / "benchmarks.md").write_text(text.rstrip() + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", type=Path, default=ROOT / "docs")
    render(parser.parse_args().docs)


if __name__ == "__main__":
    main()
