"""kill -9 of `fedstale reproduce fig2`, five times: the tables in the end are those of a run that nobody disturbed.

    python -m tests.faults.fig2 --kills 5

The command is the user's, with worker processes; each kill hits the whole process group at a random moment, after at
least one more run was stored than before. Both CSV files are compared byte for byte: they hold no wall-clock and no
run id.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from fedstale.simulation.identity import identity
from fedstale.store import Store

EXTENT = {"--p-min": "0.5,0.2,0.1,0.05", "--swap": "0,0.6,1", "--beta": "0,0.2,0.5,1,auto", "--lr": "0.03,0.1,0.3"}
SEEDS = 2
TASK = "digits-mlp"


@dataclass(frozen=True)
class Outcome:
    """What was seen: runs in the store at each kill, runs in all, and whether the tables are the same."""

    stored: list[int]
    runs: int
    repeated: int
    same: dict[str, bool]


def command(folder: Path, name: str, extent: dict[str, str], seeds: int) -> list[str]:
    """The user's command."""
    options = [word for pair in extent.items() for word in pair]
    where = ["--store", str(folder / f"{name}-store"), "--folder", str(folder / name)]
    words = ["reproduce", "fig2", "--task", TASK, *options, "--seeds", str(seeds), "--workers", "2", "-q"]
    return [sys.executable, "-m", "fedstale", *words, *where]


def finished(store: Path) -> list[str]:
    """Who is in the store as finished."""
    if not (store / "store.sqlite").exists():
        return []
    with Store.open(store, create=False) as opened:
        return [identity(info.config) for info in opened.runs(status="finished")]


def campaign(kills: int, folder: Path, *, extent: dict[str, str], seeds: int, seed: int) -> Outcome:
    """Kill and go on; then compare with an undisturbed run."""
    chance = random.Random(seed)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    store = folder / "cut-store"
    stored: list[int] = []
    while len(stored) < kills:
        process = subprocess.Popen(
            command(folder, "cut", extent, seeds), start_new_session=True, stdout=subprocess.DEVNULL, env=environment
        )
        before = len(finished(store))
        while process.poll() is None and len(finished(store)) <= before:
            time.sleep(0.1)
        time.sleep(chance.uniform(0.0, 1.0))
        if process.poll() is not None:
            raise RuntimeError(f"the sweep was through after {len(stored)} kills: take a larger extent")
        os.killpg(process.pid, signal.SIGKILL)
        if process.wait() != -signal.SIGKILL:
            raise RuntimeError("it was through before the kill landed: take a larger extent")
        stored.append(len(finished(store)))
    for name in ("cut", "whole"):
        subprocess.run(command(folder, name, extent, seeds), check=True, stdout=subprocess.DEVNULL, env=environment)
    done = finished(store)
    tables = sorted(path.name for path in (folder / "whole").glob("*.csv"))
    same = {name: (folder / "cut" / name).read_bytes() == (folder / "whole" / name).read_bytes() for name in tables}
    return Outcome(stored, len(done), len(done) - len(set(done)), same)


def main() -> None:
    """Run the campaign; exit code 1 when a table differs or a run was repeated."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fedstale-fig2-") as folder:
        seen = campaign(chosen.kills, Path(folder), extent=EXTENT, seeds=SEEDS, seed=chosen.seed)
    print(f"runs stored at each kill: {seen.stored}; runs in the end: {seen.runs}, stored twice: {seen.repeated}")
    print(f"tables equal byte for byte: {seen.same}; {time.monotonic() - began:.0f} s")
    raise SystemExit(0 if seen.same and all(seen.same.values()) and not seen.repeated else 1)


if __name__ == "__main__":
    main()
