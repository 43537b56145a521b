"""A run of a task of one's own: what does not fit is refused before anything is trained, and what was chosen stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn
from torch.nn import functional

import fedstale as fs
from fedstale.checks import InvalidInput
from fedstale.participation import Bernoulli, DailyFrequency, DailyMarkov, Participation, Trace
from fedstale.simulation.build import build, make_estimator
from fedstale.simulation.coverage import CoverageLost
from fedstale.simulation.settings import make_settings
from tests.simulation.test_stored import cut

RNG = np.random.default_rng(5)
X, Y, IDS = RNG.normal(size=(60, 3)), RNG.integers(2, size=60), np.arange(60) % 5


def own(**options: Any) -> fs.Task:
    return fs.Task.from_arrays(X, Y, IDS, **options)


def test_groups_that_were_chosen_are_reported() -> None:
    """Also where they are what would be taken without a choice."""
    given = [0, 0, 1, 1, 1]
    rare_first = Bernoulli([0.1, 0.2, 1.0, 1.0, 1.0])
    run = fs.simulate(own(groups=given), "fedavg", rare_first, rounds=2, per_client=True)
    _, accuracies = run.per_client or ((), np.empty((0, 5)))
    sizes = own().test.sizes
    expected = (accuracies[-1] * sizes)[2:].sum() / sizes[2:].sum()
    assert run.final("accuracy_group1") == pytest.approx(expected)
    simulation = build(make_settings(num_clients=5, participation=rare_first, rounds=1), task=own())
    np.testing.assert_array_equal(simulation.trainer.groups, [1, 1, 0, 0, 0])  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "option", [{"swap": 0.6}, {"share": 0.5}, {"partition": "dirichlet"}, {"partition_options": {"alpha": 0.1}}]
)
def test_settings_of_data_sets_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=f"^{next(iter(option))} = .*: is for data sets by name"):
        fs.simulate(own(), rounds=2, **option)
    with pytest.raises(InvalidInput, match="is for data sets by name"):
        fs.compare(own(), "fedavg", rounds=2, seeds=1, **option)


def test_epochs_take_what_a_client_has() -> None:
    run = fs.simulate(own(), "fedavg", p_min=1.0, rounds=2, epochs=1, batch_size=64)
    assert run.reason == "finished"
    with pytest.raises(InvalidInput, match="batch_size = 64: client"):
        fs.simulate(own(), "fedavg", p_min=1.0, rounds=2, batch_size=64)


@pytest.mark.parametrize("option", [{"optimizer": "adam"}, {"clip_gradient": 1.0}])
@pytest.mark.parametrize("rule", ["scaffold", "feddyn", "fedamd"])
def test_rules_that_correct_steps_are_refused_before_any_runs(
    rule: str, option: dict[str, Any], tmp_path: Path
) -> None:
    said = f"rule = '{rule}': corrects steps of plain sgd: not with another optimizer or with clip_gradient"
    with pytest.raises(InvalidInput, match=said):
        fs.compare(own(), ["fedavg", rule], rounds=2, seeds=1, store=tmp_path, **option)
    assert not list(tmp_path.glob("runs/*"))
    with pytest.raises(InvalidInput, match=said):
        fs.simulate(own(), rule, rounds=2, **option)
    assert fs.simulate(own(), "mifa", rounds=2, **option).reason == "finished"


CHANGES: list[dict[str, Any]] = [
    {"model": lambda: nn.Sequential(nn.Linear(3, 2), nn.Tanh())},
    {"loss": lambda o, y: functional.cross_entropy(o, y, label_smoothing=0.2)},
    {"batch_size": 1},
    {"local_steps": 9},
    {"default_lr": 0.7},
    {"optimizer": "adam"},
]


def linear() -> nn.Module:
    return nn.Linear(3, 2)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: next(iter(change)))
def test_a_run_goes_on_with_its_own_task_only(change: dict[str, Any], tmp_path: Path) -> None:
    usual: dict[str, Any] = {"model": linear, "loss": functional.cross_entropy}

    run = cut(tmp_path, task=own(**usual), rule="fedavg", num_clients=5)
    with pytest.raises(InvalidInput, match="the run was made with own"):
        fs.resume(run, store=tmp_path, task=own(**usual | change))
    assert fs.resume(run, store=tmp_path, task=own(**usual)).reason == "finished"


def test_a_day_is_as_long_as_in_the_process() -> None:
    for rounds in (12, 24, 96):
        day = DailyMarkov(np.full(4, 0.3), np.linspace(0.5, 1.5, rounds))
        made = make_estimator(make_settings(num_clients=4, probabilities="daily"), Participation(day))
        assert isinstance(made, DailyFrequency)
        assert (made.period, made.bins) == (rounds, min(rounds, 16))
    unknown = make_estimator(
        make_settings(num_clients=4, probabilities="daily"), Participation(Bernoulli.uniform(4, 0.5))
    )
    assert isinstance(unknown, DailyFrequency)
    assert unknown.period == 48


def test_a_log_says_how_many_clients_there_are(tmp_path: Path) -> None:
    Trace.from_matrix(["110", "011", "101"]).to_csv(tmp_path / "log.csv")
    options: dict[str, Any] = {"participation": "trace", "participation_options": {"path": str(tmp_path / "log.csv")}}
    assert make_settings(**options).num_clients == 3
    assert make_settings(**options, num_clients=5).num_clients == 5
    assert fs.simulate("digits", **options, rounds=3).reason == "finished"


def test_a_coverage_of_nothing_is_said() -> None:
    with pytest.warns(
        CoverageLost, match="None of the 4 clients ever comes: coverage 0%. There is nothing to learn from"
    ):
        run = fs.simulate("digits", participation=Trace.from_matrix(["0000", "0000"]), rounds=2)
    assert run.final("coverage") == 0.0
    assert "objective_covered" not in run.metrics


def test_the_caveat_names_the_range_of_p_over_the_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedstale.rules.coverage.said", set())
    day = DailyMarkov([0.2, 0.6], [1.6, 0.4])
    with pytest.warns(fs.rules.OutsideCoverage, match=r"\(0.2 to 0.6\)"):
        fs.simulate("digits", "fedavg", day, rounds=1)
