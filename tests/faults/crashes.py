"""kill -9 or Ctrl-C, a hundred times, everywhere: after each, the same command goes on and ends with the same bits.

    python -m tests.faults.crashes --kills 100 --out table.md
    python -m tests.faults.crashes --kills 200 --signal INT --once

Two ways to choose the moment: a place of the program (`places`) at a random crossing, before, during or after the call;
or a random delay ("anywhere"). A kill counts when the system says that signal 9 ended the process, an interrupt when
the process says so (exit code 130, or ended by the signal before Python heard it). Each scenario is hit once (on the
second way round twice in a row, and so on), then left alone to finish, and everything it left is compared with one
that was never hit.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .fork_server import INTERRUPTED, ForkServer
from .scenarios import SCENARIOS, Scenario

ANYWHERE = "anywhere"
MOMENTS = ("before", "during", "after")


@dataclass
class Cell:
    """One line of the table: a place in a kind of process."""

    scenario: Scenario
    place: str
    kills: int = 0
    missed: int = 0
    finished: int = 0
    identical: int = 0
    lost: int = 0
    repeated: int = 0
    troubles: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether nothing was lost, repeated or different."""
        return not (self.lost or self.repeated or self.troubles) and self.finished == self.identical


@dataclass
class Crashes:
    """Kills scenarios in a folder.

    Parameters
    ----------
    fork_server
        Where they are started.
    folder
        Where they work; removed piece by piece.
    seed
        Decides places, crossings and delays.
    signal
        What they are hit with.
    """

    fork_server: ForkServer
    folder: Path
    seed: int = 0
    signal: int = signal.SIGKILL

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._whole: dict[str, tuple[dict[str, Any], dict[str, int], float]] = {}
        self._made = 0

    def whole(self, scenario: Scenario) -> tuple[dict[str, Any], dict[str, int], float]:
        """Return the outcome of a scenario that was never hit, its crossings of each place, and its seconds."""
        if scenario.name not in self._whole:
            folder = self._new()
            answer = self.fork_server.run(scenario.name, folder)
            if answer["code"] != 0:
                raise RuntimeError(f"{scenario.name} fails by itself: {answer['log']}")
            found, rounds = scenario.read(folder)
            assert rounds == list(range(scenario.rounds)), rounds
            self._whole[scenario.name] = found, answer["counts"], answer["seconds"]
        return self._whole[scenario.name]

    def hit(self, cell: Cell, kills: int) -> None:
        """Hit one scenario `kills` times in a row, let it finish, and compare."""
        expected, counts, seconds = self.whole(cell.scenario)
        folder, done = self._new(), 0
        for _ in range(kills):
            job = {"signal": int(self.signal), **self._aim(cell, counts, seconds, kills)}
            answer = self.fork_server.run(cell.scenario.name, folder, seed=self._chance.randrange(2**31), **job)
            if self._ended(answer) or (job.get("target") == "worker" and answer["struck"] and answer["code"] == 0):
                cell.kills += 1
                done += 1
            elif answer["code"] == 0:
                cell.missed += 1  # it was through before its time came
                break
            else:
                cell.troubles.append(answer["log"])
                return
        if done:
            self._finish(cell, folder, expected)
        shutil.rmtree(folder, ignore_errors=True)

    def _ended(self, answer: dict[str, Any]) -> bool:
        if self.signal == signal.SIGKILL or answer["signal"] is not None:
            return bool(answer["signal"] == self.signal)
        # An interpreter that is hit before it has imported anything ends with code 1 by itself.
        early = answer["log"].endswith("KeyboardInterrupt\n") and "fedstale" not in answer["log"]
        return answer["code"] == INTERRUPTED or early

    def _finish(self, cell: Cell, folder: Path, expected: dict[str, Any]) -> None:
        answer = self.fork_server.run(cell.scenario.name, folder)
        if answer["code"] != 0:
            cell.troubles.append(answer["log"])
            return
        cell.finished += 1
        found, rounds = cell.scenario.read(folder)
        wanted = range(cell.scenario.rounds)
        cell.lost += len(set(wanted) - set(rounds))
        cell.repeated += len(rounds) - len(set(rounds))
        different = [name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)]
        cell.identical += not different
        if different:
            cell.troubles.append(f"different: {', '.join(sorted(different))}")

    def _aim(self, cell: Cell, counts: dict[str, int], seconds: float, kills: int) -> dict[str, Any]:
        if cell.place == ANYWHERE:
            return {"delay": self._chance.uniform(0.0, seconds / (1 if kills == 1 else 2))}
        if cell.place == "worker":  # what workers do is local training and the rule
            return {"delay": self._chance.uniform(0.3, 0.8) * seconds, "target": "worker"}
        most = max(1, counts[cell.place] // (1 if kills == 1 else 2))
        crossing = self._chance.randint(1, most)
        return {"place": cell.place, "crossing": crossing, "moment": self._chance.choice(MOMENTS)}

    def _new(self) -> Path:
        self._made += 1
        return self.folder / f"{self._made:04d}"


def cells(scenarios: Iterable[Scenario], number: int = signal.SIGKILL) -> list[Cell]:
    """Every place of every scenario, and anywhere; Ctrl-C goes to all processes of a command, not to a worker."""
    table = [Cell(scenario, place) for scenario in scenarios for place in (*scenario.places, ANYWHERE)]
    return [cell for cell in table if number == signal.SIGKILL or cell.place != "worker"]


def campaign(
    kills: int,
    folder: Path,
    *,
    seed: int = 0,
    number: int = signal.SIGKILL,
    once: bool = False,
    report: Callable[[Cell], None] = lambda cell: None,
) -> list[Cell]:
    """Go round the cells until `kills` have landed, each time in another order.

    On the k-th way round each scenario is hit k times before it may finish, or only `once`.
    """
    table = cells(SCENARIOS.values(), number)
    order = random.Random(seed)
    with ForkServer() as fork_server:
        crashes = Crashes(fork_server, folder, seed, number)
        landed, turn = 0, 0
        while landed < kills:
            turn += 1
            for cell in order.sample(table, len(table)):
                before = cell.kills
                often = 1 if once or "workers" in cell.scenario.kind else turn
                crashes.hit(cell, min(kills - landed, often))
                landed += cell.kills - before
                report(cell)
                if landed >= kills:
                    break
    return table


def markdown(table: list[Cell]) -> str:
    """The table, with its sums."""
    lines = [
        "| process | memory | place | kills landed | runs resumed | bit-identical | rounds lost | rounds repeated |",
        "|---|---|---|---:|---:|---:|---:|---:|",
    ]
    for cell in table:
        numbers = (cell.kills, cell.finished, cell.identical, cell.lost, cell.repeated)
        if cell.kills:
            row = (cell.scenario.kind, cell.scenario.storage, cell.place, *map(str, numbers))
            lines.append(f"| {' | '.join(row)} |")
    sums = [sum(getattr(c, n) for c in table) for n in ("kills", "finished", "identical", "lost", "repeated")]
    lines.append(f"| **all** | | | {' | '.join(f'**{number}**' for number in sums)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the campaign and print its table; exit code 1 when anything was lost, repeated or different."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--signal", choices=("KILL", "INT"), default="KILL")
    parser.add_argument("--once", action="store_true", help="hit each scenario once, not oftener on every way round")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the table here as Markdown")
    chosen = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fedstale-crashes-") as folder:
        number = signal.Signals[f"SIG{chosen.signal}"]
        how = {"seed": chosen.seed, "number": number, "once": chosen.once}
        table = campaign(chosen.kills, Path(folder), **how, report=_tell)
    text = markdown(table)
    print(f"\n{text}\n{time.monotonic() - began:.0f} s, seed {chosen.seed}")
    if chosen.out is not None:
        chosen.out.write_text(text, encoding="utf-8")
    for cell in table:
        for trouble in cell.troubles:
            print(f"{cell.scenario.name}, {cell.place}: {trouble}")
    raise SystemExit(0 if all(cell.sound for cell in table) else 1)


def _tell(cell: Cell) -> None:
    print(
        f"{cell.scenario.name}, {cell.place}: {cell.kills} landed, {cell.missed} missed, sound: {cell.sound}",
        flush=True,
    )


if __name__ == "__main__":
    main()
