"""Grids of learning rates grow until the best rate is interior, and say so where they could not."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from fedstale.analysis import Cell, tuned
from fedstale.checks import InvalidInput
from fedstale.simulation import Settings
from fedstale.store import Store
from fedstale.sweeps import Batch, Grid, RunOutcome, at_edges, lr_grid, results, sweep, widen
from fedstale.sweeps.executors import _Outcomes
from fedstale.sweeps.widening import beyond
from fedstale.tasks.catalogue import _DIGITS_GRID, _MNIST_GRID, _PAPER_GRID

from .test_cli import invoke

Accuracy = Callable[[Settings], float]


class Laboratory:
    """A sweep whose runs have made-up accuracies; NaN diverges, infinity fails."""

    def __init__(self, folder: Path, accuracy: Accuracy, most: int = 4) -> None:
        self.folder, self.accuracy, self.most = folder, accuracy, most
        self.batches: list[Batch] = []

    def executor(self, batches: Sequence[Batch]) -> _Outcomes:
        for batch in batches:
            self.batches.append(batch)
            yield batch, [self.outcome(one) for one in batch.runs]

    def outcome(self, one: Settings) -> RunOutcome:
        value = self.accuracy(one)
        if math.isinf(value):
            return RunOutcome(one.record(), reason="out of luck", failed=True)
        if math.isnan(value):
            return RunOutcome(one.record(), reason="diverged", diverged_in=1)
        return RunOutcome(one.record(), [(one.total_rounds - 1, {"accuracy": value})])

    def tune(self, **axes: Sequence[object] | str) -> list[Cell]:
        self.batches.clear()
        runs = Grid("lab", {"rounds": 10}, {"seed": [0, 1], **axes}).runs()
        with Store.open(self.folder) as store:

            def do(some: Sequence[Settings]) -> None:
                sweep(some, store, name="lab", executor=self.executor)

            do(runs)
            return tuned(results(store, widen(runs, store, do, self.most)))

    @property
    def done(self) -> list[float | None]:
        return [one.lr for batch in self.batches for one in batch.runs]


def peak(at: float) -> Accuracy:
    return lambda one: 0.9 - 0.1 * abs(math.log10(one.lr or 0.0) - math.log10(at))


@pytest.mark.parametrize("grid", [_DIGITS_GRID, _MNIST_GRID, _PAPER_GRID])
def test_the_next_rate_is_that_of_the_tasks_grids_to_the_last_bit(grid: tuple[float, ...]) -> None:
    assert [beyond(rate, -1) for rate in grid[:-1]] == list(grid[1:])
    assert [beyond(rate, 1) for rate in grid[1:]] == list(grid[:-1])


def test_rates_of_other_grids() -> None:
    assert (beyond(0.316, 1), beyond(0.316, -1)) == (1.0, 0.1)
    assert (beyond(0.02, 1), beyond(0.02, -1)) == (0.0632, 0.00632)


@pytest.mark.parametrize(("best", "expected"), [(1e-3, 1e-3), (3.0, 10**0.5), (0.1, 0.1)])
def test_the_best_rate_ends_interior(tmp_path: Path, best: float, expected: float) -> None:
    (cell,) = Laboratory(tmp_path, peak(best)).tune(lr="grid")
    assert cell.lr == expected
    assert cell.at_edge is None
    assert len(cell.runs) == 2
    assert at_edges([cell]) == []


def test_each_method_in_each_setting_has_its_own_grid_and_shares_batches(tmp_path: Path) -> None:
    def accuracy(one: Settings) -> float:
        return peak({0.0: 0.1, 0.5: 1e-3, 1.0: 10**-2.5}[float(str(one.beta or 0.0))])(one)

    lab = Laboratory(tmp_path, accuracy)
    cells = lab.tune(beta=[0.0, 0.5, 1.0], lr="grid")
    assert {cell.runs[0].settings.beta: len(cell.rates) for cell in cells} == {0.0: 5, 0.5: 8, 1.0: 7}
    assert {cell.at_edge for cell in cells} == {None}
    first_round = [batch for batch in lab.batches if {one.lr for one in batch.runs} == {10**-2.5}]
    assert [(len(batch.runs), batch.lockstep) for batch in first_round] == [(2, True), (2, True)]  # one per seed
    assert lab.tune(beta=[0.0, 0.5, 1.0], lr="grid") == cells
    assert lab.done == []


def test_the_number_of_further_rates_is_bounded_and_said(tmp_path: Path) -> None:
    lab = Laboratory(tmp_path, peak(1e-30), most=2)
    (cell,) = lab.tune(lr=[0.1, 0.01])
    assert lab.done == [0.1, 0.01] * 2 + [10**-2.5] * 2 + [1e-3] * 2
    assert cell.at_edge == "low"
    assert at_edges([cell]) == ["p_min 0.1, swap 0, Tempered FedStale (lowest rate 0.001)"]


def test_a_rate_at_which_a_seed_diverged_closes_the_upper_side(tmp_path: Path) -> None:
    def accuracy(one: Settings) -> float:
        return math.nan if one.lr == 1.0 and one.seed == 1 else peak(100.0)(one)

    lab = Laboratory(tmp_path, accuracy)
    (cell,) = lab.tune(lr=[10**-0.5, 0.1])
    assert (cell.lr, cell.at_edge) == (10**-0.5, None)
    assert max(rate or 0.0 for rate in lab.done) == 1.0


def test_where_every_rate_diverged_only_smaller_ones_are_tried(tmp_path: Path) -> None:
    lab = Laboratory(tmp_path, lambda one: math.nan if (one.lr or 0.0) > 0.05 else peak(10**-1.5)(one))
    (cell,) = lab.tune(lr=[1.0, 0.1])
    assert (cell.lr, cell.at_edge) == (10**-1.5, None)
    assert sorted(cell.rates, key=lambda rate: rate or 0.0) == [0.01, 10**-1.5, 0.1, 1.0]


def test_one_rate_grows_to_both_sides(tmp_path: Path) -> None:
    (cell,) = Laboratory(tmp_path / "a", peak(0.1)).tune(lr=[0.1])
    assert (set(cell.rates), cell.at_edge) == ({10**-0.5, 0.1, 10**-1.5}, None)
    (cell,) = Laboratory(tmp_path / "b", peak(0.1), most=0).tune(lr=[0.1])
    assert cell.at_edge == "both"
    assert "only rate 0.1" in at_edges([cell])[0]


def test_a_run_that_fails_leaves_its_rate_at_the_edge(tmp_path: Path) -> None:
    lab = Laboratory(tmp_path, lambda one: math.inf if (one.lr or 0) < 0.005 and one.seed else peak(1e-5)(one))
    (cell,) = lab.tune(lr="grid")
    assert (cell.lr, cell.at_edge) == (lr_grid("digits")[-1], "low")
    assert lab.done.count(10**-2.5) == 2
    lab.accuracy = peak(1e-3)
    (cell,) = lab.tune(lr="grid")
    assert (cell.lr, cell.at_edge) == (1e-3, None)


def test_from_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "tiny.toml"
    file.write_text("[settings]\nrounds = 4\np_min = 0.5\n[grid]\nbeta = [0.0, 1.0]\nlr = [0.1, 0.01]\n")
    command = ("sweep", file, "--store", tmp_path / "s", "--workers", 0, "-q", "--tune", "--out", tmp_path / "out.csv")
    code, said = invoke(*command)
    assert code == 0
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    for beta in ("0.0", "1.0"):
        curve = {float(row["lr"]): row["accuracy_tail"] for row in rows if row["beta"] == beta}
        best = max(curve, key=lambda rate: float(curve[rate] or "nan") if curve[rate] else -1.0)
        assert min(curve) < best < max(curve)
    assert "at the edge" not in said
    assert f"{len(rows)} already in the store, 0 run now" in invoke(*command)[1]


def test_without_rates_there_is_nothing_to_choose(tmp_path: Path) -> None:
    file = tmp_path / "none.toml"
    file.write_text("[grid]\nbeta = [0.0, 1.0]\n")
    with pytest.raises(InvalidInput, match="needs learning rates to choose from"):
        invoke("sweep", file, "--store", tmp_path / "s", "--tune")
