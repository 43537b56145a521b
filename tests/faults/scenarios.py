"""What is killed: single runs, sweeps and a Flower server, small enough that a hundred of them take minutes.

`Scenario.go` is what a user would do again and again after a crash: the same command, which goes on where it stopped.
`Scenario.outcome` is everything that must be the same in the end, as text and hashes. Only `seconds` is left out: it is
the wall-clock.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedstale.state import State
from fedstale.store import RunInfo, Store
from tests.everything import arrays_of

ROUNDS = 24
FLOWER_ROUNDS = 12
CLIENTS = 6


@dataclass(frozen=True)
class Scenario:
    """A kind of process and where it keeps stale updates.

    Attributes
    ----------
    kind, storage
        How the table calls it.
    places
        Where it can be hit.
    go
        Starts it, or goes on with it, in a folder.
    rounds
        Rounds (of a sweep: runs) that must be there in the end, each once.
    """

    kind: str
    storage: str
    places: tuple[str, ...]
    go: Callable[[Path], None]
    rounds: int
    read: Callable[[Path], tuple[dict[str, Any], list[Any]]]

    @property
    def name(self) -> str:
        """Its key."""
        return f"{self.kind}, {self.storage}"


def digest(value: Any) -> str:
    """Hash of an array's bits, its dtype and its shape."""
    array = np.ascontiguousarray(value)
    return hashlib.sha256(f"{array.dtype.str} {array.shape} ".encode() + array.tobytes()).hexdigest()


def state_outcome(folder: Path) -> dict[str, Any]:
    """Everything in a checkpoint: model, every row of every memory, sums, statistics, estimator."""
    state = State.load(folder)
    found: dict[str, Any] = {name: digest(array) for name, array in arrays_of(state).items()}
    state.close()
    return found


def metrics_outcome(store: Store, info: RunInfo) -> dict[str, Any]:
    """Every recorded number of a run, bit by bit."""
    run = store.run(info.id)
    rounds, series = run.columns()
    found: dict[str, Any] = {"status": info.status, "done": info.rounds_done, "rounds": digest(rounds)}
    for name, values in series.items():
        if name != "seconds":
            found[f"metric/{name}"] = digest(values.rounds) + digest(values.values)
    found["participants"] = [(t, who.tolist()) for t, who in run.participants().items()]
    for name in run.client_metric_names():
        found[f"clients/{name}"] = [digest(part) for part in run.client_metrics(name)]
    found["summary"] = {name: value.hex() for name, value in info.summary.items() if name != "seconds"}
    return found


def _run(memory: str, task: str, *, cold: bool = False) -> Callable[[Path], None]:
    def go(folder: Path) -> None:
        tasks = {
            "digits": ["digits-mlp", "--engine", "vmap", "--threads", "1", "--swap", "0.5"],
            "quadratic": ["quadratic", "--num-clients", "6", "--lr", "0.02", "--probabilities", "fedau"],
        }
        options = ["--rounds", str(ROUNDS), "--p-min", "0.3", "--seed", "3", "--checkpoint-every", "3", "--quiet"]
        options += ["--rule", "fedstale", "--beta", "auto", "--memory", memory, "--per-client"]
        command = ["run", *tasks[task], *options, "--resume", "--store", str(folder)]
        if cold:  # a new interpreter in place of this process: it may be hit while it starts
            os.execv(sys.executable, [sys.executable, "-m", "fedstale", *command])
        from fedstale.cli.app import app

        if app(command, standalone_mode=False):  # typer makes an exit code of KeyboardInterrupt
            raise KeyboardInterrupt

    return go


def _read_run(folder: Path) -> tuple[dict[str, Any], list[Any]]:
    with Store.open(folder, create=False) as store:
        (info,) = store.runs()
        found = metrics_outcome(store, info)
        rounds = store.run(info.id).columns()[0].tolist()
    return {**found, **state_outcome(info.folder / "checkpoint")}, rounds


def grid_of(storage: str) -> Any:
    """The runs of the small sweep: perceptrons that go in lock-step, or runs with rows on disk that go alone."""
    from fedstale.sweeps import Grid

    common = {"rounds": 8, "evaluate_every": 2, "memory": storage}
    axes: dict[str, Any] = {"p_min": [0.5, 0.3], "beta": [0.0, 0.5, "auto"], "lr": [0.1, 0.3]}
    if storage == "disk":
        common |= {"task": "quadratic", "num_clients": 4}
        axes |= {"lr": [0.01, 0.02]}
    return Grid("crash", common, axes)


def _sweep(storage: str, workers: int) -> Callable[[Path], None]:
    def go(folder: Path) -> None:
        from fedstale import sweeps

        executor = sweeps.processes(workers) if workers else sweeps.in_process
        with Store.open(folder) as store:
            progress = sweeps.sweep(grid_of(storage).runs(), store, name="crash", executor=executor)
        if not progress.complete:
            raise RuntimeError(f"failed: {progress.failures}")

    return go


def _read_sweep(storage: str) -> Callable[[Path], tuple[dict[str, Any], list[Any]]]:
    def read(folder: Path) -> tuple[dict[str, Any], list[Any]]:
        from fedstale.simulation.identity import identity
        from fedstale.sweeps import results, write_csv

        runs = grid_of(storage).runs()
        with Store.open(folder, create=False) as store:
            infos = {identity(info.config): info for info in store.runs(status="finished")}
            found = {key: metrics_outcome(store, info) for key, info in sorted(infos.items())}
            write_csv(folder / "results.csv", results(store, runs))
            places = {identity(one.record()): k for k, one in enumerate(runs)}
            done = sorted(places[identity(info.config)] for info in store.runs())  # also those that are not finished
        return {**found, "csv": (folder / "results.csv").read_text()}, done

    return read


def _flower(storage: str) -> Callable[[Path], None]:
    def go(folder: Path) -> None:
        from flwr.supercore.task_identity import TaskIdentity

        from fedstale.flower import FedStale
        from tests.flower.grid import MemoryGrid, first_model, record

        from .absent import sometimes

        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1  # Flower wants to be in a task
        checkpoint = folder / "checkpoint"
        memory = "ram" if storage == "ram" else f"disk:{folder / 'rows'}"
        # These clients never answer late, and are asked again.
        options: Any = {"memory": memory, "store": folder, "max_wait": 0.0, "fraction_evaluate": 1.0, "late_for": 0}
        if (checkpoint / "state.safetensors").exists():
            strategy = FedStale.resume(checkpoint)
        else:
            strategy = FedStale(checkpoint=checkpoint, **options)
        grid = MemoryGrid(sometimes(range(CLIENTS)))
        strategy.start(grid, record(first_model()), num_rounds=FLOWER_ROUNDS)

    return go


def _read_flower(folder: Path) -> tuple[dict[str, Any], list[Any]]:
    found = state_outcome(folder / "checkpoint")
    about = State.load(folder / "checkpoint")
    facts = json.loads(about.notes["flower"])
    about.close()
    run = facts["strategy"].pop("store_run")
    # The text of the saved facts holds the run's id and the folder of the test; the facts themselves are compared.
    facts["strategy"]["options"] = {
        k: v for k, v in facts["strategy"]["options"].items() if k not in ("memory", "store")
    }
    with Store.open(folder, create=False) as store:
        info = store.run(run).info()
        found |= metrics_outcome(store, info)
        rounds = store.run(run).columns()[0].tolist()
    return {**found, "notes/flower": json.dumps(facts, sort_keys=True)}, rounds


EVERYWHERE = ("training", "rule", "checkpoint", "store")
SWEPT = ("training", "rule", "store")  # a sweep has no checkpoints: an unfinished run is done again
SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("single run", "ram", EVERYWHERE, _run("ram", "digits"), ROUNDS, _read_run),
        Scenario("single run", "disk", EVERYWHERE, _run("disk", "digits"), ROUNDS, _read_run),
        Scenario("single run, quadratic", "ram", EVERYWHERE, _run("ram:bfloat16", "quadratic"), ROUNDS, _read_run),
        Scenario("single run, quadratic", "disk", EVERYWHERE, _run("disk", "quadratic"), ROUNDS, _read_run),
        Scenario("single run, starting", "ram", (), _run("ram", "quadratic", cold=True), ROUNDS, _read_run),
        Scenario("sweep, lock-step", "ram", SWEPT, _sweep("ram", 0), 12, _read_sweep("ram")),
        Scenario("sweep, one by one", "disk", SWEPT, _sweep("disk", 0), 12, _read_sweep("disk")),
        Scenario("sweep, 2 workers", "ram", ("worker", "store"), _sweep("ram", 2), 12, _read_sweep("ram")),
        Scenario("Flower server", "ram", EVERYWHERE, _flower("ram"), FLOWER_ROUNDS, _read_flower),
        Scenario("Flower server", "disk", EVERYWHERE, _flower("disk"), FLOWER_ROUNDS, _read_flower),
    )
}
