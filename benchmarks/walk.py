"""The walk of one round: which files and functions of fedstale a reader meets between one round and the next.

    python benchmarks/walk.py [--engine loop] [--store] [--list]

One run of FedStale with β = auto on the embedded digits; one round in the middle of it is watched, an evaluated one and
one that is not. Counted are distinct functions of the package that were entered, and the files that they are in. (A
lambda, a comprehension or a generator belongs to the function around it.)
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import fedstale as fs
from fedstale.simulation import Callback

ROOT = Path(fs.__file__).parent
ROUNDS = 20


class Watch(Callback):
    """Note what is entered from the end of one round to the end of the next, in every thread."""

    def __init__(self, round: int) -> None:
        self.round = round
        self.watching = False
        self.entered: set[tuple[str, str]] = set()

    def on_round(self, simulation: Any, record: Any) -> None:
        """Begin after the round before, and end after this one."""
        self.watching = record.round == self.round - 1

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        """Take what Python reports to a profiler."""
        code = frame.f_code
        if not self.watching or event != "call" or not code.co_filename.startswith(str(ROOT)):
            return
        name = code.co_qualname.partition(".<locals>")[0]
        if "<" not in name:
            self.entered.add((Path(code.co_filename).relative_to(ROOT).as_posix(), name))


def walk(engine: str, *, evaluated: bool, store: bool) -> list[tuple[str, str]]:
    """Return (file, function) of everything that one round enters, in alphabetical order."""
    middle = ROUNDS // 2
    watch = Watch(middle)
    options: dict[str, Any] = {"evaluate_every": middle + 1 if evaluated else ROUNDS}
    threading.setprofile(watch.note)  # engines start their threads in the first round
    sys.setprofile(watch.note)
    try:
        with tempfile.TemporaryDirectory() as folder:
            options |= {"store": folder} if store else {}
            fs.simulate("digits", beta="auto", p_min=0.5, rounds=ROUNDS, engine=engine, callbacks=[watch], **options)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return sorted(watch.entered)


def main() -> None:
    """Print how many files and functions there are, and which."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="vmap", choices=["loop", "vmap"])
    parser.add_argument("--store", action="store_true", help="keep the run in a store")
    parser.add_argument("--list", action="store_true", help="name every function")
    given = parser.parse_args()
    for evaluated in (False, True):
        found = walk(given.engine, evaluated=evaluated, store=given.store)
        files = sorted({file for file, _ in found})
        what = "an evaluated round" if evaluated else "a round"
        print(f"{given.engine}, {what}: {len(files)} files, {len(found)} functions")
        if given.list:
            for file in files:
                print(f"  {file}: {', '.join(name for inside, name in found if inside == file)}")


if __name__ == "__main__":
    main()
