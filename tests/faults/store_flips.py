"""Damage to store.sqlite itself: SQLite's pages have no checksums, the rows and blocks of a store have.

    python -m tests.faults.store_flips --mutations 5000
    python -m tests.faults.store_flips --each-bit

A store is written and closed; one bit is flipped, some bytes are scrambled, a page is zeroed or swapped with another,
or the file is cut; then everything in it is read. What may come out: what was written, or a `StoreError` of one line
that names the file.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sqlite3
import tempfile
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from fedstale.store import Store, StoreError

from .corruption import PAGE, cut, flip, scramble, zero
from .scenarios import metrics_outcome


def swap(file: Path, old: Path, chance: random.Random) -> str:
    """Exchange two pages, as a misdirected write does."""
    content = bytearray(file.read_bytes())
    a, b = (chance.randrange(len(content) // PAGE) * PAGE for _ in range(2))
    content[a : a + PAGE], content[b : b + PAGE] = content[b : b + PAGE], content[a : a + PAGE]
    file.write_bytes(content)
    return f"pages at {a} and {b} exchanged"


def each_bit(folder: Path, step: int = 1) -> tuple[Counter[str], list[str]]:
    """Flip every bit (or one in `step`) of the page of the runs; return the outcomes, and what must not happen."""
    whole, now = folder / "whole", folder / "now"
    written(whole, runs=3, rounds=6)
    now.mkdir()
    truth, content = read(whole), (whole / "store.sqlite").read_bytes()
    with closing(sqlite3.connect(whole / "store.sqlite")) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'run'").fetchone()
    counts: Counter[str] = Counter()
    wrong = []
    for bit in range((page - 1) * PAGE * 8, page * PAGE * 8, step):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        (now / "store.sqlite").write_bytes(flipped)
        outcome, text = judged(now, truth)
        counts[outcome] += 1
        if outcome == "WRONG":
            wrong.append(f"bit {bit % 8} of byte {bit // 8}: {text}")
    return counts, wrong


HARMS = (flip, flip, flip, flip, scramble, zero, swap, cut)


def written(folder: Path, runs: int = 12, rounds: int = 600) -> None:
    """Write a store as sweeps and runs do: configs, metrics over many blocks, participants, numbers per client."""
    chance = np.random.default_rng(0)
    with Store.open(folder) as store:
        for k in range(runs):
            config = {"task": "digits-mlp", "beta": k / 10, "seed": k, "note": "x" * 300}
            with store.start(config, name=f"run {k}", sweep="flips", rounds_total=600) as run:
                for t in range(rounds if k == 0 else min(rounds, 40)):
                    some = np.flatnonzero(chance.random(20) < 0.4)
                    values = {"accuracy": float(chance.random()), "loss": float(chance.normal())}
                    run.record(t, values, participants=some, clients={"p": chance.random(20)} if t % 10 == 0 else None)


def read(folder: Path) -> dict[str, Any]:
    """Everything that a store tells, the ways in which programs ask."""
    with Store.open(folder, create=False, read_only=True) as store:
        infos = store.runs()
        found: dict[str, Any] = {info.id: metrics_outcome(store, info) for info in infos}
        plain = [
            (i.id, i.name, i.sweep, i.status, i.created, i.updated, i.rounds_done, i.config, i.summary) for i in infos
        ]
        found["runs"] = plain
        found["finished"] = [info.id for info in store.runs(status="finished")]
        found["sweep"] = [info.id for info in store.runs(sweep="flips")]
        found["found"] = [getattr(store.find(info.config), "id", None) for info in infos]
    return found


def judged(folder: Path, truth: dict[str, Any]) -> tuple[str, str]:
    """Read a damaged store: "same", "error" (one line that names the file) or "WRONG", and what it was."""
    try:
        found = read(folder)
    except StoreError as error:
        text = str(error)
        return "error" if str(folder / "store.sqlite") in text and "\n" not in text else "WRONG", text
    except Exception as error:
        return "WRONG", f"{type(error).__name__}: {error}"
    different = [key for key in truth if found.get(key) != truth[key]]
    return "same" if found == truth else "WRONG", str(different)


def campaign(mutations: int, folder: Path, seed: int) -> tuple[Counter[tuple[str, str]], list[str]]:
    """Damage, read, count; return the counts by harm and outcome, and what must not happen, in words."""
    whole, now = folder / "whole", folder / "now"
    written(whole)
    truth = read(whole)
    chance = random.Random(seed)
    counts: Counter[tuple[str, str]] = Counter()
    wrong = []
    now.mkdir()
    for k in range(mutations):
        harm = HARMS[k % len(HARMS)]
        file = now / "store.sqlite"
        for rest in now.glob("store.sqlite*"):
            rest.unlink()
        shutil.copyfile(whole / "store.sqlite", file)
        detail = harm(file, file, chance)
        outcome, text = judged(now, truth)
        counts[harm.__name__, outcome] += 1
        if outcome == "WRONG":
            wrong.append(f"{detail}: {text}")
    return counts, wrong


def main() -> None:
    """Print a table; exit code 1 when a wrong number came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mutations", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--each-bit", action="store_true", help="every bit of the page of runs instead")
    chosen = parser.parse_args()
    if chosen.each_bit:
        with tempfile.TemporaryDirectory(prefix="fedstale-flips-") as folder:
            outcomes, wrong = each_bit(Path(folder))
        print(f"{sum(outcomes.values())} bits: {dict(outcomes)}", *wrong, sep="\n")
        raise SystemExit(1 if wrong else 0)
    with tempfile.TemporaryDirectory(prefix="fedstale-flips-") as folder:
        counts, wrong = campaign(chosen.mutations, Path(folder), chosen.seed)
    print("| harm | a clear error | what was written | wrong |\n|---|---:|---:|---:|")
    for harm in dict.fromkeys(harm.__name__ for harm in HARMS):
        print(f"| {harm} | " + " | ".join(str(counts[harm, kind]) for kind in ("error", "same", "WRONG")) + " |")
    print(*wrong, sep="\n")
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
