"""A restarted server goes on with the same bits, whatever ids the nodes have then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord

import fedstale as fs
from fedstale.flower import FedStale, RuleStrategy, TemperedFedStale, UnbiasedFedAvg, UnbiasedFedVARP
from fedstale.participation import Forgetting
from fedstale.rules import Guarded, ServerAdam
from fedstale.store import Store, StoreError
from tests.combinations import combinations

from .grid import MemoryGrid, Model, Node, first_model, flat, record, trainers

QUICK: Any = {"min_available_nodes": 0, "min_train_nodes": 0, "fraction_evaluate": 0.0, "max_wait": 0.0}


def model() -> Model:
    return {**first_model(), "bn.running_var": np.ones(2, "f4"), "bn.num_batches_tracked": np.asarray(0, "i8")}


def drive(strategy: RuleStrategy, nodes: dict[int, Node], rounds: range, first_node: int) -> ArrayRecord:
    """Run some rounds with who is present; the model comes from the strategy when it was resumed."""
    grid = MemoryGrid(nodes)
    arrays = record(model()) if rounds.start == 1 else strategy.current_arrays()
    for t in rounds:
        chance = np.random.default_rng([5, t])
        grid.online = {first_node + i for i in range(6) if chance.random() < 0.5 and (i < 5 or t > 6)}
        grid.reverse = bool(t % 2)
        replies = grid.send_and_receive(strategy.configure_train(t, arrays, ConfigRecord(), grid))
        new, _ = strategy.aggregate_train(t, replies)
        assert new is not None
        arrays = new
        strategy.settle(arrays)  # as a loop does by going on to the evaluation
    return arrays


MADE: list[Any] = [
    TemperedFedStale,
    FedStale,
    UnbiasedFedVARP,
    UnbiasedFedAvg,
    lambda **o: FedStale(beta="auto-per-client", weights="sample", **o),
    lambda **o: FedStale(beta="theory", probabilities="forgetting", **o),
    lambda **o: FedStale(beta=0.5, probabilities="daily", **o),
    lambda **o: RuleStrategy(ServerAdam(Guarded(fs.FedStale(beta={0: 0, 10: 1}), clip_norm=2.0)), **o),
]


@pytest.mark.parametrize(("make", "memory"), combinations(MADE, ["disk", "ram:bfloat16", "ram"]))
def test_resumed_equals_uninterrupted(make: Any, memory: str, tmp_path: Path) -> None:
    where = {name: f"disk:{tmp_path}/{name}-rows" if memory == "disk" else memory for name in ("whole", "cut")}
    nodes = trainers(range(6), 1000)
    whole = drive(make(**QUICK, memory=where["whole"]), nodes, range(1, 13), 1000)

    first = make(**QUICK, memory=where["cut"], checkpoint=tmp_path / "saved")
    drive(first, nodes, range(1, 6), 1000)
    first.aggregator.state.close()  # the process is gone
    second = type(first).resume(tmp_path / "saved")
    assert type(second) is type(first)
    found = drive(second, trainers(range(6), 77_000), range(6, 13), 77_000)
    assert {n: a.numpy().tobytes() for n, a in found.items()} == {n: a.numpy().tobytes() for n, a in whole.items()}
    assert second.aggregator is not None
    assert sorted(second.aggregator.identities) == [f"client-id:{i}" for i in range(6)]


def test_start_goes_on_to_the_total_number_of_rounds(tmp_path: Path) -> None:
    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        rounds.append(server_round)
        return MetricRecord({"norm": float(np.linalg.norm(flat(arrays)))})

    rounds: list[int] = []
    grid = MemoryGrid(trainers(range(4)))
    whole = FedStale(fraction_train=0.5, fraction_evaluate=0.0).start(grid, record(model()), num_rounds=7)
    options: Any = {"fraction_train": 0.5, "fraction_evaluate": 0.0, "checkpoint": tmp_path / "c"}
    FedStale(**options).start(grid, record(model()), num_rounds=3)
    resumed = FedStale.resume(tmp_path / "c").start(grid, record(model()), num_rounds=7, evaluate_fn=evaluate)
    assert sorted(resumed.train_metrics_clientapp) == [1, 2, 3, 4, 5, 6, 7]
    assert rounds == [3, 4, 5, 6, 7]  # the first run did not evaluate round 3
    assert flat(resumed.arrays).tobytes() != flat(record(model())).tobytes()
    # Who is asked depends on rows already known, so it may differ from `whole` before everybody was seen once.
    assert flat(whole.arrays).shape == flat(resumed.arrays).shape
    again = FedStale.resume(tmp_path / "c").start(grid, record(model()), num_rounds=7)
    assert sorted(again.train_metrics_clientapp) == [1, 2, 3, 4, 5, 6, 7]
    np.testing.assert_array_equal(flat(again.arrays), flat(resumed.arrays))


def test_a_checkpoint_is_not_overwritten_by_a_new_run(tmp_path: Path) -> None:
    grid = MemoryGrid(trainers(range(2)))
    FedStale(checkpoint=tmp_path).start(grid, record(model()), num_rounds=1)
    with pytest.raises(fs.InvalidInput, match=r"holds a checkpoint already: give FedStale\(…, resume=\"auto\"\)"):
        FedStale(checkpoint=tmp_path).start(grid, record(model()), num_rounds=1)


def test_resume_restores_the_options_and_takes_changes(tmp_path: Path) -> None:
    grid = MemoryGrid(trainers(range(4)))
    options: Any = {"beta": 0.25, "server_lr": 0.5, "weights": "sample", "fraction_train": 0.75, "seed": 9}
    FedStale(**options, probabilities=dict.fromkeys(range(4), 0.5), checkpoint=tmp_path).start(
        grid, record(model()), num_rounds=2
    )
    strategy = FedStale.resume(tmp_path, min_train_nodes=3)
    assert strategy.rule == fs.FedStale(beta=0.25, server_lr=0.5)
    assert strategy.fraction_train == 0.75
    assert strategy.min_train_nodes == 3
    assert strategy.probabilities.known == {str(i): 0.5 for i in range(4)}
    assert strategy.options["seed"] == 9


def test_resume_refuses_what_does_not_fit(tmp_path: Path) -> None:
    grid = MemoryGrid(trainers(range(2)))
    FedStale(checkpoint=tmp_path).start(grid, record(model()), num_rounds=1)
    for changes, text in (
        ({"weights": "client"}, "weights = 'client': the checkpoint was written with 'sample'"),
        ({"identity": "key"}, "identity"),
        ({"rule": fs.FedStale(beta=0.5)}, "rule"),
        ({"rule": fs.FedAvg()}, "rule"),
    ):
        with pytest.raises(fs.InvalidInput, match=text):
            FedStale.resume(tmp_path, **changes)
    with pytest.raises(fs.InvalidInput, match="keep their names, shapes and dtypes"):
        FedStale.resume(tmp_path).start(grid, record({"other": np.zeros(3, "f4")}), num_rounds=2)
    with pytest.raises(fs.InvalidInput, match="there is no checkpoint"):
        FedStale.resume(tmp_path / "nowhere")


def test_functions_and_objects_must_be_given_again(tmp_path: Path) -> None:
    def aggregate(contents: Any, key: str) -> MetricRecord:
        return MetricRecord({"replies": len(contents)})

    grid = MemoryGrid(trainers(range(2)))
    rule = fs.FedStale(beta=lambda t: 0.5)
    options: Any = {"train_metrics_aggr_fn": aggregate, "probabilities": Forgetting()}
    RuleStrategy(rule, **options, checkpoint=tmp_path).start(grid, record(model()), num_rounds=1)
    with pytest.raises(fs.InvalidInput, match="probabilities = None: it could not be saved"):
        RuleStrategy.resume(tmp_path, rule=rule, train_metrics_aggr_fn=aggregate)
    with pytest.raises(fs.InvalidInput, match="could not be saved whole"):
        RuleStrategy.resume(tmp_path, **options)
    same = fs.FedStale(beta=lambda t: 0.5)  # another process has another function object
    result = RuleStrategy.resume(tmp_path, rule=same, **options).start(grid, record(model()), num_rounds=2)
    assert result.train_metrics_clientapp[2]["replies"] == 2


def test_a_crash_while_saving_leaves_the_round_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    grid = MemoryGrid(trainers(range(3)))
    whole = FedStale().start(grid, record(model()), num_rounds=4)
    strategy = FedStale(checkpoint=tmp_path)
    strategy.start(grid, record(model()), num_rounds=2)

    def crash(*_: Any) -> None:
        raise OSError("power cut")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", crash)
        with pytest.raises(fs.InvalidInput, match=r"folder .*: power cut"):
            strategy.start(grid, strategy.current_arrays(), num_rounds=1)
    resumed = FedStale.resume(tmp_path).start(grid, record(model()), num_rounds=4)
    assert sorted(resumed.train_metrics_clientapp) == [1, 2, 3, 4]
    assert flat(resumed.arrays).tobytes() == flat(whole.arrays).tobytes()


def test_only_changed_rows_are_written(tmp_path: Path) -> None:
    """A round with one participant of 40 must not write 40 rows again."""
    big = {"w": np.zeros(10_000, "f4")}
    grid = MemoryGrid(trainers(range(40)))
    strategy = FedStale(**QUICK, checkpoint=tmp_path)
    strategy.start(grid, record(big), num_rounds=1)
    grid.online = {1003}
    strategy.start(grid, record(big), num_rounds=1)
    (rows,) = tmp_path.glob("*.rows")
    before = rows.stat().st_blocks * 512
    for _ in range(6):
        strategy.start(grid, record(big), num_rounds=1)
    assert rows.stat().st_blocks * 512 - before <= 3 * 40_000


def stored(folder: Path, **options: Any) -> FedStale:
    return FedStale(
        **QUICK, memory=f"disk:{folder}/rows", checkpoint=folder / "c", store=folder / "s", seed=1, **options
    )


def every_file(folder: Path) -> dict[str, Any]:
    """Every file by content, the store's by what it says of its runs."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "lock"]
    found: dict[str, Any] = {str(p.relative_to(folder)): p.read_bytes() for p in files if "store.sqlite" not in p.name}
    with Store.open(folder / "s", read_only=True) as store:
        return {**found, "runs": store.runs()}


def test_a_copied_federation_goes_on_and_the_original_never_changes(tmp_path: Path) -> None:
    import shutil

    grid = MemoryGrid(trainers(range(3)))
    whole = stored(tmp_path / "whole")
    expected = flat(whole.start(grid, record(model()), num_rounds=6).arrays)
    first = stored(tmp_path / "a")
    first.start(grid, record(model()), num_rounds=3)
    assert first.aggregator is not None
    first.aggregator.state.close()
    before = every_file(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for folder in ("b", "a"):
        strategy = FedStale.resume(tmp_path / folder / "c")
        found = flat(strategy.start(grid, record(model()), num_rounds=6).arrays)
        np.testing.assert_array_equal(found, expected)
        assert strategy.aggregator is not None
        strategy.aggregator.state.close()
        with Store.open(tmp_path / folder / "s", read_only=True) as store:
            assert [(run.status, run.rounds_done) for run in store.runs()] == [("finished", 6)]
        if folder == "b":
            assert every_file(tmp_path / "a") == before


def test_a_copied_checkpoint_does_not_write_into_the_run_of_the_original(tmp_path: Path) -> None:
    import shutil

    grid = MemoryGrid(trainers(range(3)))
    first = stored(tmp_path / "a")
    first.start(grid, record(model()), num_rounds=3)
    assert first.aggregator is not None
    first.aggregator.state.close()
    before = every_file(tmp_path / "a")
    shutil.copytree(tmp_path / "a/c", tmp_path / "a/copy")
    strategy = FedStale.resume(tmp_path / "a/copy")
    with pytest.raises(StoreError, match=r"belongs to the checkpoint .*a/c, of which .*a/copy is a copy"):
        strategy.start(grid, record(model()), num_rounds=6)
    strategy = FedStale.resume(tmp_path / "a/copy", store=None)
    strategy.start(grid, record(model()), num_rounds=6)
    shutil.rmtree(tmp_path / "a/copy")
    assert every_file(tmp_path / "a") == before
    (tmp_path / "a/c").rename(tmp_path / "a/moved")
    FedStale.resume(tmp_path / "a/moved").start(grid, record(model()), num_rounds=4)
