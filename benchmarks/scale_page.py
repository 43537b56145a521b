"""Write docs/scale.md from what benchmarks/scale.py and benchmarks/lockstep_cnn.py measured.

    python benchmarks/scale_page.py [--docs DOCS]

A part whose results are not there is left out. Limits are computed here from the measured constants.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.peers import machine
from benchmarks.peers.environments import ROOT
from benchmarks.peers.page import ran

BAR = 0.85
NETWORK = 10e9 / 8
"""Bytes a second of the driver's network in the computed limits: an assumption, 10 Gbit/s."""
PARTS = {
    "scale-actors": "actors against the loop engine and the bytes of a round",
    "scale-constants": "what limits 10, 100, 1,000 workers",
    "scale-clients": "N up to ten million",
}
PER_WORKER = 24
"""Clients a round that each worker gets in the computed limits."""

INTRODUCTION = """\
# Scale: one machine, many workers, many clients

Written by `benchmarks/scale.py` and `benchmarks/lockstep_cnn.py` from what they measured
(`docs/results/benchmarks/scale-*.csv`, `lockstep-cnn*.csv`). Everything on this page was measured on one machine with
two cores; what is computed for more workers says so.

## One run on many workers
`engine="ray"` trains a round's clients in the actors of a Ray cluster, here or on many machines:

<!-- needs cluster: tests/training/test_ray_cluster.py -->
```console
fedstale run mnist-cnn --engine ray                       # starts Ray here, one actor per processor
fedstale run mnist-cnn --engine ray --ray-address auto    # the cluster that runs on this machine
fedstale run mnist-cnn --engine ray --workers 8 --gpus-per-worker 0.5
```

Each actor holds one model and the data of its share of the clients. The model goes into Ray's object store once a
round; every machine fetches it once. Clients are shared out by their samples and by the measured speed of the actors;
an actor that is done takes work from the others. Updates come back through shared memory, and the server's pass reads
them there and writes them into the memory's spare rows: there is no copy in between. Participants and batches are
those of every other engine, since they are functions of (seed, round, client), and so are checkpoints and `--resume`.

An actor that dies (killed, out of memory, its machine gone) is replaced and its clients are trained again; an update
is a function of (model, seed, round, client), and a round takes one of each client. As long as the cluster has no
processor for a new actor, the others do its work. An actor that dies four times without a result in between ends the
run, which can be resumed: `fedstale resume ID --ray-address ADDRESS --workers 4` where the cluster is another one now.
Resumed runs are equal to rounding; those of small models, which an actor trains together, not to the bit, because who
is trained with whom depends on the measured speeds. The models are evaluated by the process that you started, with
`--threads` threads. `--gpus-per-worker` gives actors GPUs; it has not been run, because there was no machine with one.

## Data larger than memory
`tasks.write_clients` writes clients' samples to files, one client after the other, and `tasks.open_clients` maps them:
training reads the rows of its batches and nothing else, whichever engine does it; evaluation reads all.

```python
import numpy as np
from torch import nn
from torch.nn import functional

import fedstale as fs
from fedstale import tasks


def phone(number: int):
    # One client at a time is in memory: read it from wherever it is.
    chance = np.random.default_rng(number)
    x = chance.normal(size=(50, 8))
    return x, (x[:, 0] > 0).astype(int)


train = tasks.write_clients("phones/train", (phone(i) for i in range(30)))
test = tasks.write_clients("phones/test", (phone(1000 + i) for i in range(30)))
task = tasks.Task("phones", train, test, lambda: nn.Linear(8, 2), functional.cross_entropy, 2, groups=np.arange(30) % 2)
result = fs.simulate(task, rounds=20, p_min=0.5, lr=0.1, batch_size=16, progress=False)
assert result.final("accuracy") > 0.8
```

With `engine="ray"` such data are not sent: actors open the files, which must be found under the same path on every
machine. Nor are data that a function makes: `tasks.make_clients` takes the function and how many samples each client
has, and whoever trains a client calls it. The clients used last (64) are kept.

```python
made = tasks.make_clients(phone, [50] * 30)
task = tasks.Task("phones", made, test, lambda: nn.Linear(8, 2), functional.cross_entropy, 2, groups=np.arange(30) % 2)
again = fs.simulate(task, rounds=20, p_min=0.5, lr=0.1, batch_size=16, progress=False)
assert np.allclose(again.model, result.model, atol=1e-6)  # the same samples
```

All other data lie in Ray's object store, once per machine that uses them; an actor holds on to the blocks that it used
last, about twice its share, so that Ray may move others to disk (which was not tried here).
"""

LOCKSTEP = """\
## Why convolutional runs do not train in lock-step

Runs that differ in rule, β, rate or label swap train on the same batches, and for perceptrons that saves most of the
work ([growth](benchmarks.md)): their first layer is one matrix product for all runs. A convolutional model shares its
input, too, but almost all of its arithmetic is in the second convolution, whose inputs differ. Four ways to take the
steps of R runs of the paper's MNIST CNN, in turns, on one thread; *over the loop engine*: above 1 is faster. All
agree with the loop engine to rounding (last column: the distance of the models after two steps, relative to the
steps).
"""

ROOFLINE = """\
How fast could it be at all? A step's floating-point operations (direct convolutions, forward and backward) at the
fastest rate that any library reached here on one thread, plus the bytes that it must move (the outputs of both
convolutions and their gradients, each written and read once) at the speed of a copy:
"""


def render(docs: Path) -> None:
    """Write the page."""
    results = docs / "results" / "benchmarks"
    lines = [INTRODUCTION]
    missing = [text for name, text in PARTS.items() if not (results / f"{name}.csv").exists()]
    if missing:
        lines += _text(f"**Not measured yet** (`python benchmarks/scale.py` does it): {'; '.join(missing)}.")
    lines += _actors(results)
    lines += _limits(results)
    lines += _clients(results)
    lines += _lockstep(results)
    (docs / "scale.md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def _text(*sentences: str) -> list[str]:
    """A paragraph, in lines of the length that the docs have, and an empty line."""
    return [*textwrap.wrap(" ".join(sentences), 120, break_long_words=False, break_on_hyphens=False), ""]


def _about(results: Path, name: str) -> list[str]:
    return [ran(machine.read_about(results / f"{name}-about.csv")), ""]


def _actors(results: Path) -> list[str]:
    rows = machine.read(results / "scale-actors.csv")
    if not rows:
        return []
    lines = ["### Against the loop engine, on two cores", ""]
    lines += _text(
        "The paper's MNIST CNN (421,642 parameters), 24 clients of 500",
        "images in every round, K = 5, batch 128, FedStale",
        "with β = auto; the four took turns in one process. *against the",
        "loop engine*: the loop engine's time with as many",
        "threads over this one's.",
    )
    lines += _about(results, "scale-actors")
    lines += ["| | a round | against the loop engine | of n times the speed of one |", "|---|---|---|---|"]
    for row in rows:
        low, middle, high = (float(row[name]) for name in ("lower quartile", "seconds", "upper quartile"))
        spread = f"{middle:.2f} s [{low:.2f}, {high:.2f}]"
        against, speed = float(row["against the loop engine"]), float(row["of twice the speed of one"])
        lines.append(f"| {row['way']} | {spread} | {against:.0%} | {speed:.0%} |")
    two = rows[-1]
    against = float(two["against the loop engine"])
    met = "met" if against >= BAR else "**missed**"
    bits = "were equal to the bit" if two["equal bits"] == "True" else "**differed**"
    moved = {name: f"{int(two[name]):,}" for name in ("model", "sent", "returned")}
    return [
        *lines,
        "",
        *_text(
            f"Two actors against the loop engine with two threads: {against:.0%}",
            f"(bar {BAR:.0%}: {met}); two actors against",
            f"twice one actor: {float(two['of twice the speed of one']):.0%}.",
            f"The models of all four {bits} in the end.",
        ),
        *_text(
            f"**Bytes a round.** Model {moved['model']} (once per machine), batches {moved['sent']}, updates",
            f"{moved['returned']}, in {two['pieces']} pieces.",
        ),
    ]


def _limits(results: Path) -> list[str]:
    found = {row["what"]: float(row["value"]) for row in machine.read(results / "scale-constants.csv")}
    rows = machine.read(results / "scale-actors.csv")
    if not found or not rows:
        return []
    one = next(row for row in rows if row["way"] == "Ray, 1 actor")
    client = float(one["seconds"]) / 24
    model, update = int(one["model"]), int(one["returned"]) // 24
    piece = found["seconds of a further piece"]
    server = found["seconds of the server for an update of 421,642 parameters"]
    lines = ["### What limits 10, 100, 1,000 workers: computed", ""]
    lines += _text(
        f"From measured constants: a client's local training {1e3 * client:.0f}",
        "ms on one core (a round of one actor over",
        f"24), the driver's {1e3 * piece:.2f} ms for a further piece of work",
        f"({found['seconds of an empty round'] * 1e3:.1f} ms for a round",
        f"of one), the server's pass {1e3 * server:.2f} ms for",
        f"an update. Assumed, not measured: {NETWORK * 8 / 1e9:.0f} Gbit/s",
        "at the driver's machine, one worker per machine,",
        f"{PER_WORKER} clients per worker and round in 4 pieces each, all",
        "of one speed. Parts that could overlap are added up;",
        "evaluation is left out.",
    )
    lines += _about(results, "scale-constants")
    lines += ["| workers | clients a round | training | driver | server's pass | network | efficiency | limit | held |"]
    lines += ["|---|---|---|---|---|---|---|---|---|"]
    for workers in (10, 100, 1000):
        clients = PER_WORKER * workers
        parts = {
            "driver": 4 * workers * piece,
            "server's pass": clients * server,
            "network": (clients * update + workers * model) / NETWORK,
        }
        train = PER_WORKER * client
        whole = train + sum(parts.values())
        shown = " | ".join(f"{value:.2f} s" for value in parts.values())
        largest = max(parts, key=lambda name: parts[name])
        cells = f"{workers:,} | {clients:,} | {train:.2f} s | {shown} | {train / whole:.0%} | {largest}"
        lines.append(f"| {cells} | {clients * update / 1e9:.1f} GB |")
    return [
        *lines,
        "",
        *_text(
            "*efficiency*: training over everything; *limit*: the largest",
            "part beside training; *held*: the round's updates, in the object store of the driver's machine until the",
            "server's pass. One driver is enough as long",
            "as it takes a round's updates in less time than a worker trains",
            "its clients; beyond that the updates, not the",
            "training, set the pace, whatever the engine. What helps is more",
            "local work per update, or fewer bytes per update;",
            "a tree of servers is not there.",
        ),
    ]


def _clients(results: Path) -> list[str]:
    rows = machine.read(results / "scale-clients.csv")
    if not rows:
        return []
    first, last = rows[0], rows[-1]
    ratio = float(last["seconds"]) / float(first["seconds"])
    return [
        "## Clients: N up to ten million",
        "",
        *_text(
            "1,000 participants a round, d = 10,000, FedStale with β =",
            "auto, rows in a sparse file in bfloat16, as in [a",
            "million clients](benchmarks.md); the federations took turns.",
            "A row exists once its client was seen, so that a",
            "round costs what its participants cost; what grows with N are a few numbers per client.",
        ),
        *_about(results, "scale-clients"),
        "| N | a round |",
        "|---|---|",
        *(f"| {int(row['clients']):,} | {float(row['seconds']):.3f} s |" for row in rows),
        "",
        *_text(
            f"A round at N = {int(last['clients']):,} takes {ratio:.2f} times",
            f"as long as at N = {int(first['clients']):,}. The",
            f"process, with all of these federations in it, had {float(last['own bytes']) / 1e9:.2f} GB of its own.",
        ),
    ]


def _lockstep(results: Path) -> list[str]:
    rows = machine.read(results / "lockstep-cnn.csv")
    if not rows:
        return []
    lines = [LOCKSTEP, *_about(results, "lockstep-cnn")]
    lines += ["| precision | batch | runs | way | ms per run and step | over the loop engine | apart |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for row in rows:
        apart = float(row["distance from the loop's steps"])
        numbers = f"{float(row['ms per run and step']):.1f} | {float(row['over the loop engine']):.2f}× | {apart:.1g}"
        lines.append(f"| {row['precision']} | {row['batch']} | {row['runs']} | {row['way']} | {numbers} |")
    lines += ["", ROOFLINE]
    lines += [
        "| precision | batch | runs | loop engine | operations | bytes | most that can be gained | 1.5× can be had |"
    ]
    lines += ["|---|---|---|---|---|---|---|---|"]
    roofs = machine.read(results / "lockstep-cnn-roofline.csv")
    for row in roofs:
        ms = [float(row[f"{name}, ms"]) for name in _TIMES]
        shown = " | ".join(f"{value:.1f} ms" for value in ms)
        most = f"{float(row['most that can be gained']):.2f}×"
        lines.append(
            f"| {row['precision']} | {row['batch']} | {row['runs']} | {shown} | {most} | {row['bar can be had']} |"
        )
    loop = {
        (row["precision"], row["batch"]): float(row["ms per run and step"])
        for row in rows
        if row["way"] == "loop engine"
    }
    best = max((float(row["over the loop engine"]), row["way"]) for row in rows if row["way"] != "loop engine")
    hopeless = all(row["bar can be had"] == "no" for row in roofs if row["precision"] == "float32")
    lines += [""]
    if best[0] <= 1:
        lines += _text(f"No way is faster than the loop engine; the best, {best[1]}, has {best[0]:.2f} of its speed.")
    if hopeless:
        lines += _text(
            "In float32 a gain of 1.5 is **out of reach**: it is more than",
            "a step would gain if everything ran at the fastest",
            "rate and nothing but these bytes were moved",
            "(at batch 32 only just, and caches may be faster than memory). In bfloat16 there is",
            "room, but lock-step would not use it: nothing is",
            "shared between runs, and what takes the time beside the",
            "products is mostly pooling and conversions, which a",
            "single run has, too. So convolutional runs of a sweep are",
            "trained one by one by the loop engine, one in each",
            "worker process.",
        )
    lines += _winograd(results)
    if ("float32", "128") in loop:
        runs, steps = 6 * 5 * 5 * 3, 200 * 12.6 * 5
        hours = {name: runs * steps * loop[name, "128"] / 1e3 / 3600 / 2 for name in ("float32", "bfloat16")}
        lines += _text(
            "The paper's Figure 3 on MNIST (six swaps; β = 0, .5, 1, auto and tempered; five rates; three seeds:",
            f"{runs} runs of 200 rounds with 12.6 clients and 5 steps of batch",
            f"128) is {runs * steps / 1e6:.2f} million steps:",
            f"computed from the loop engine's time above, {hours['float32']:.1f}",
            "hours of local training on two cores in float32,",
            f"{hours['bfloat16']:.1f} in bfloat16. A night has about ten: that bar is **missed**. Where the rate is",
            "chosen on a seed of its own, and only the best one is run with three others, there are",
            f"{_CHOSEN} runs: {hours['float32'] * _CHOSEN / runs:.1f} and {hours['bfloat16'] * _CHOSEN / runs:.1f}",
            "hours. Evaluation and the server's part come on top, a few per cent.",
        )
    return lines


def _winograd(results: Path) -> list[str]:
    """What was tried with fewer multiplications."""
    found = {row["way"]: float(row["ms"]) for row in machine.read(results / "winograd.csv")}
    if not found:
        return _text("Convolutions with fewer multiplications, such as Winograd's, are not bound by this: not tried.")
    direct, whole, products = (found[name] for name in ("direct", "Winograd", "its products alone"))
    return _text(
        "Winograd's convolutions need 2.25 times fewer multiplications and are not bound by this. The second",
        "convolution, forward, batch 128, on one thread (`python benchmarks/winograd.py`):",
        f"direct {direct:.1f} ms, Winograd's by batched matrix products {whole:.1f} ms, of which the products alone",
        f"take {products:.1f} ms: they multiply",
        "matrices of 32 columns, whose results are four times as large as the image's, and are bound by memory. oneDNN",
        "as torch brings it has none for these processors. One that keeps its tiles in the cache was not written; a",
        "single run would gain from it as much as runs in lock-step.",
    )


_CHOSEN = 6 * 5 * (5 + 3)
"""Runs of Figure 3 where five rates are tried on one seed, and the best is run with three."""


_TIMES = ("loop engine", "operations at that rate", "bytes at the speed of a copy")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", type=Path, default=ROOT / "docs")
    render(parser.parse_args().docs)


if __name__ == "__main__":
    main()
