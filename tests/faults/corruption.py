"""Files that a run leaves, damaged in every way: cut, flipped, zeroed, lost, or replaced by an older version of itself.

    python -m tests.faults.corruption --mutations 600

`Scene` is a run that was killed in the middle, with a copy of its files from before: the older half of a torn set. A
mutation damages one file of a fresh copy; then the user's command goes on. What may happen: one line that names the
file and what is wrong (an error of the library's own type), or the very bits of the run that nobody damaged.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedstale.checks import InvalidInput

from .fork_server import ForkServer
from .scenarios import SCENARIOS, Scenario

PAGE = 4096
Harm = Callable[[Path, Path, random.Random], str]


def cut(file: Path, old: Path, chance: random.Random) -> str:
    """Truncate at a random place."""
    content = file.read_bytes()
    at = chance.randrange(len(content)) if content else 0
    file.write_bytes(content[:at])
    return f"cut at {at} of {len(content)}"


def flip(file: Path, old: Path, chance: random.Random) -> str:
    """Flip one bit, where there is something to flip."""
    content = bytearray(file.read_bytes())
    at, bit = _somewhere(content, chance), chance.randrange(8)
    if content:
        content[at] ^= 1 << bit
        file.write_bytes(content)
    return f"bit {bit} of byte {at}"


def scramble(file: Path, old: Path, chance: random.Random) -> str:
    """Overwrite up to 64 bytes with noise."""
    content = bytearray(file.read_bytes())
    at = _somewhere(content, chance)
    length = min(chance.randint(1, 64), len(content) - at)
    content[at : at + length] = chance.randbytes(length)
    file.write_bytes(content)
    return f"{length} bytes of noise at {at}"


def zero(file: Path, old: Path, chance: random.Random) -> str:
    """Zero a page, as a disk does that lost a write."""
    content = bytearray(file.read_bytes())
    at = _somewhere(content, chance) // PAGE * PAGE
    content[at : at + PAGE] = bytes(len(content[at : at + PAGE]))
    file.write_bytes(content)
    return f"page at {at} zeroed"


def _somewhere(content: bytearray, chance: random.Random) -> int:
    """A random place; a row file is mostly a hole, so that half of them are bytes in use."""
    if chance.random() < 0.5:
        used = np.flatnonzero(np.frombuffer(bytes(content), dtype=np.uint8))
        if used.size:
            return int(chance.choice(used))
    return chance.randrange(max(len(content), 1))


def older(file: Path, old: Path, chance: random.Random) -> str:
    """Put back the version of an earlier moment, of this file only."""
    if old.exists():
        shutil.copy2(old, file)
    else:
        file.unlink()
    return "an older version"


def lose(file: Path, old: Path, chance: random.Random) -> str:
    """Delete the file."""
    file.unlink()
    return "deleted"


HARMS: tuple[Harm, ...] = (cut, flip, flip, scramble, zero, older, lose)


@dataclass(frozen=True)
class Scene:
    """A run that stopped in the middle.

    Attributes
    ----------
    scenario
        What goes on with it.
    home
        Where it works: checkpoints name row files on disk by their absolute path.
    early, late
        Copies of its folder at two moments.
    truth
        Its outcome when nothing is damaged.
    """

    scenario: Scenario
    home: Path
    early: Path
    late: Path
    truth: dict[str, Any]

    def files(self) -> list[Path]:
        """Every file that the run has left so far, relative to its folder."""
        return sorted(path.relative_to(self.late) for path in self.late.rglob("*") if path.is_file())

    def try_one(self, name: Path, harm: Harm, chance: random.Random) -> tuple[str, str]:
        """Damage one file and go on; return what happened ("error", "same", or what went wrong)."""
        folder = self.home
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.late, folder)
        detail = f"{name}: {harm(folder / name, self.early / name, chance)}"
        try:
            self.scenario.go(folder)
            found, _ = self.scenario.read(folder)
        except InvalidInput as error:
            text = str(error)
            return ("error" if "\n" not in text and named(text, folder, name) else f"unclear: {text}"), detail
        except BaseException as error:
            return f"{type(error).__name__}: {error}", detail
        different = [key for key in self.truth.keys() | found.keys() if self.truth.get(key) != found.get(key)]
        return ("same" if not different else f"SILENTLY DIFFERENT: {', '.join(sorted(different))}"), detail


def named(text: str, folder: Path, name: Path) -> bool:
    """Whether a message names the file, its folder's checkpoint or the store, or (beside the file) its run."""
    parts = {str(folder / name), str((folder / name).parent), name.parts[1] if len(name.parts) > 1 else "store.sqlite"}
    return any(part in text for part in parts) or str(folder) in text


def family(name: Path) -> str:
    """What kind of file it is, for the table."""
    if name.suffix == ".rows":
        return "row file"
    if name.suffix == ".tmp":
        return "checkpoint half written"
    return {"state.safetensors": "checkpoint", "lock": "lock"}.get(name.name, name.name)


Tally = dict[tuple[str, str], Counter[str]]


def campaign(scene: Scene, mutations: int, seed: int, tally: Tally) -> list[str]:
    """Damage files in turn; return what must not happen, in words."""
    chance = random.Random(seed)
    wrong = []
    files = scene.files()
    for turn in range(mutations):
        name, harm = files[turn % len(files)], HARMS[turn // len(files) % len(HARMS)]
        outcome, detail = scene.try_one(name, harm, chance)
        good = outcome in ("error", "same")
        tally.setdefault((family(name), harm.__name__), Counter())[outcome if good else "WRONG"] += 1
        if not good:
            wrong.append(f"{scene.scenario.name}: {detail}: {outcome}")
    return wrong


def set_scene(fork_server: ForkServer, name: str, folder: Path) -> Scene:
    """Run a scenario to the end for the truth, and kill another one at two moments."""
    scenario, place, crossings = SCENARIOS[name], *SCENES[name]
    whole, home = folder / "whole", folder / "home"
    assert fork_server.run(name, whole)["code"] == 0
    truth, _ = scenario.read(whole)
    for moment, crossing in zip(("early", "late"), crossings, strict=True):
        answer = fork_server.run(name, home, place=place, crossing=crossing, moment="after")
        assert answer["signal"] == 9, answer
        shutil.copytree(home, folder / moment)
    return Scene(scenario, home, folder / "early", folder / "late", truth)


def main() -> None:
    """Damage the files of every kind of run; print a table; exit code 1 when something went wrong silently."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mutations", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    tally: Tally = {}
    wrong: list[str] = []
    with tempfile.TemporaryDirectory(prefix="fedstale-corruption-") as place:
        for k, name in enumerate(SCENES):
            with ForkServer() as fork_server:
                scene = set_scene(fork_server, name, Path(place) / str(k))
            wrong += campaign(scene, chosen.mutations // len(SCENES), chosen.seed + k, tally)
    print(markdown(tally))
    print(*wrong, sep="\n")
    raise SystemExit(1 if wrong else 0)


SCENES: dict[str, tuple[str, tuple[int, int]]] = {
    "single run, quadratic, ram": ("checkpoint", (40, 43)),
    "single run, quadratic, disk": ("checkpoint", (40, 43)),
    "Flower server, ram": ("checkpoint", (40, 47)),
    "Flower server, disk": ("checkpoint", (40, 43)),
    "sweep, one by one, disk": ("store", (17, 21)),
}
"""Scenarios whose files are damaged, and at which crossings of which place they are killed, twice."""


def markdown(tally: Tally) -> str:
    """The table: file × harm → errors, same bits, wrong."""
    lines = ["| file | harm | a clear error | the same bits | wrong |", "|---|---|---:|---:|---:|"]
    for (name, harm), counts in sorted(tally.items()):
        lines.append(f"| {name} | {harm} | {counts['error']} | {counts['same']} | {counts['WRONG']} |")
    total = Counter[str]()
    for counts in tally.values():
        total += counts
    lines.append(f"| **all** | | **{total['error']}** | **{total['same']}** | **{total['WRONG']}** |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
