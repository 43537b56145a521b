"""Lock-step runs are single runs: the same numbers to rounding, whoever else is in the batch."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from fedstale import rules
from fedstale.beta import Auto
from fedstale.checks import InvalidInput
from fedstale.participation import FedAUEstimator, Markov
from fedstale.simulation import Settings, build, make_settings
from fedstale.store import Store
from fedstale.sweeps import lockstep as lockstep_of_runs
from fedstale.sweeps import plan, run_batch, sweep
from fedstale.sweeps.batches import _perceptron_of
from fedstale.sweeps.lockstep import _UNDERSTOOD, eligible
from fedstale.sweeps.perceptron import SharedBatchPerceptron
from fedstale.tasks import data, models, natural

METHODS: list[tuple[str, float | str | None]] = [
    ("fedavg", None),
    ("u-fedavg", None),
    ("fedvarp", None),
    ("u-fedvarp", None),
    ("fedstale", None),
    ("fedstale", 0.0),
    ("fedstale", 0.5),
    ("fedstale", "auto-per-client"),
    ("mifa", None),
    ("tempered", None),
]
TEST_SAMPLES = 359


def various() -> list[Settings]:
    return [
        make_settings(rule=rule, beta=beta, p_min=0.3, num_clients=8, rounds=8, evaluate_every=4, seed=3, lr=lr,
                 swap=swap, probabilities=source, server_lr=rate, weights="sample", weight_decay=decay,
                 schedule="step:5:0.5")
        for turn, (rule, beta) in enumerate(METHODS)
        for lr, swap, source, rate, decay in ((0.1, 0.0, "known", 1, 0.01), (0.3, 0.6, "fedau", 0.7, 0.01))[turn % 2 :]
    ]  # fmt: skip


def lockstep(runs: list[Settings]) -> dict[str, list[tuple[int, dict[str, float]]]]:
    found = {}
    for batch in plan(runs):
        assert batch.lockstep
        for one, outcome in zip(batch.runs, run_batch([one.record() for one in batch.runs], True), strict=True):
            assert not outcome.failed, outcome.reason
            found[repr(one)] = outcome.rows
    return found


def assert_equal_to_single_runs(runs: list[Settings], test_samples: int) -> None:
    together = lockstep(runs)
    for one in runs:
        simulation = build(one.replace(engine="loop", threads=1), progress=False)
        simulation.run()
        alone = {record.round: record.metrics for record in simulation.records if "accuracy" in record.metrics}
        rows = dict(together[repr(one)])
        assert rows.keys() == alone.keys() == {3, 7}
        for t, metrics in rows.items():
            assert metrics.keys() == alone[t].keys() - {"seconds"}  # server_bytes was missing
            assert abs(metrics.get("swap_train", 0.0) - one.swap) < 0.01  # the share that was swapped is recorded
            for name, value in metrics.items():
                # Rounding may flip the class of a sample that is on the edge: one of them is allowed to.
                tolerance = 2.1 / test_samples if name.startswith("accuracy") else 1e-4 * max(1.0, abs(value))
                assert value == pytest.approx(alone[t][name], abs=tolerance), (one.label, t, name)


@pytest.mark.filterwarnings("ignore")
def test_equals_single_runs() -> None:
    assert_equal_to_single_runs(various(), TEST_SAMPLES)


@pytest.fixture
def made_up_people(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """36 people with 43 features of six activities, as WISDM has: some have little, most lack an activity."""
    rng = np.random.default_rng(0)
    lines = [",".join(["user", *map(str, range(43)), "class"])]
    for person in range(36):
        activities = rng.permutation(natural._ACTIVITIES)[: 1 + person % 6]
        for _ in range(42 + 2 * person):  # at least a batch of 32 after a fifth is held out
            activity = rng.choice(activities)
            x = rng.normal(natural._ACTIVITIES.index(activity), 2.0, 43).round(3)
            lines.append(",".join([str(person), *map(str, x), activity]))
    monkeypatch.setattr(data, "files", lambda name, progress: {"wisdm.csv": "\n".join(lines).encode()})
    lockstep_of_runs._task.cache_clear()
    yield
    lockstep_of_runs._task.cache_clear()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("made_up_people")
@pytest.mark.parametrize("task", ["wisdm-mlp", "wisdm-logistic"])
def test_a_natural_federation_equals_single_runs(task: str) -> None:
    assert _perceptron_of(task) is not None
    runs = [
        make_settings(task=task, num_clients=36, rule=rule, beta=beta, p_min=0.3, rounds=8, evaluate_every=4, lr=0.3)
        for rule, beta in METHODS[:: 1 if task == "wisdm-mlp" else 3]
    ]
    assert_equal_to_single_runs(runs, test_samples=72)  # of the worst tenth of the people


def test_a_run_does_not_depend_on_its_neighbours() -> None:
    runs = [make_settings(beta=beta, p_min=0.3, rounds=10, lr=lr, swap=swap)
            for beta in (0.0, 1.0, "auto") for lr in (0.1, 1.0) for swap in (0.0, 1.0)]  # fmt: skip
    together = lockstep(runs)
    random.Random(1).shuffle(runs)
    for part in (runs[:1], runs[1:4], runs[4:]):
        for key, rows in lockstep(part).items():
            assert rows == together[key]


def test_a_diverged_run_ends_alone() -> None:
    calm, wild = make_settings(beta=1.0, p_min=0.5, lr=0.1), make_settings(beta=1.0, p_min=0.5, lr=1e30)
    outcomes = run_batch([calm.record(), wild.record()], True)
    assert outcomes[0].reason == "finished"
    assert len(outcomes[0].rows) == 20
    assert (outcomes[1].reason, outcomes[1].diverged_in) == ("diverged", 1)
    assert math.isnan(outcomes[1].tail(wild.total_rounds))
    assert outcomes[0].rows == run_batch([calm.record()], True)[0].rows


def test_batches_share_participants_and_batches() -> None:
    runs = [make_settings(p_min=p, seed=seed, beta=beta, lr=lr)
            for p in (0.5, 0.1) for seed in (0, 1) for beta in (0.0, "auto") for lr in (0.1, 0.3)]  # fmt: skip
    batches = plan(runs)
    assert [len(batch.runs) for batch in batches] == [4, 4, 4, 4]
    assert all(len({(one.p_min, one.seed) for one in batch.runs}) == 1 for batch in batches)


@pytest.mark.parametrize(
    "changes",
    [{"momentum": 0.5}, {"epochs": 1}, {"beta": "theory"}, {"task": "digits-cnn"}, {"task": "quadratic"},
     {"memory": "ram:bfloat16"}, {"per_client": True}],
)  # fmt: skip
def test_what_cannot_run_in_lockstep_runs_alone(changes: dict[str, object]) -> None:
    assert [batch.lockstep for batch in plan([make_settings(**changes)])] == [False]


def test_perceptrons_are_recognised() -> None:
    assert _perceptron_of("digits") == SharedBatchPerceptron((64, 32, 10))
    assert _perceptron_of("mnist-logistic") == SharedBatchPerceptron((784, 10))
    assert _perceptron_of("mnist-cnn") is None
    assert SharedBatchPerceptron((64, 32, 10)).num_params == sum(p.numel() for p in models.mlp(64).parameters())


@pytest.mark.parametrize(
    "module",
    [nn.Sequential(nn.Flatten(), nn.Linear(4, 3, bias=False)), nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU()),
     nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), nn.Sequential(nn.Linear(4, 3)),
     nn.Sequential(nn.Flatten(), nn.Linear(4, 3).requires_grad_(False))],
    ids=["no bias", "ReLU last", "Tanh", "not flattened", "frozen"],
)  # fmt: skip
def test_other_models_are_no_such_perceptron(module: nn.Module) -> None:
    assert SharedBatchPerceptron.of(module) is None


def test_what_the_loop_refuses_is_refused() -> None:
    [outcome] = run_batch([make_settings(batch_size=5000, rounds=1).record()], True)
    assert outcome.failed
    assert "batch_size = 5000" in outcome.reason


def test_wide_groups_are_cut() -> None:
    runs = [make_settings(lr=float(lr)) for lr in np.linspace(0.1, 1.0, 70)]
    assert [len(batch.runs) for batch in plan(runs)] == [24, 24, 22]


def test_data_do_not_depend_on_p_min() -> None:
    from fedstale.simulation.build import make_participation

    groups = [make_participation(make_settings(p_min=p)).participation_groups().tolist() for p in (1.0, 0.5, 0.002)]
    assert groups[0] == groups[1] == groups[2]


def test_a_setting_that_is_not_understood_goes_to_the_ordinary_loop() -> None:
    class Later(Settings):
        """A later version, with one more setting."""

        news: str = "none"

    assert Settings.model_fields.keys() >= _UNDERSTOOD
    assert eligible(Later.model_validate({}))
    assert not eligible(Later.model_validate({"news": "something"}))
    changed: dict[str, object] = {
        "rule_options": {"a": 1},
        "memory": "ram:bfloat16",
        "bad_updates": "leave-out",
        "device": "cuda",
    }
    changed |= {
        "optimizer": "adam",
        "optimizer_options": {"eps": 1},
        "clip_gradient": 1.0,
        "precision": "bfloat16",
        "epochs": 2,
        "clip_norm": 2,
        "max_weight": 2,
        "momentum": 0.5,
    }
    usual = make_settings()
    assert eligible(usual)
    for name in Settings.model_fields.keys() - _UNDERSTOOD:  # as a copy: some need others, which would be enough
        assert not eligible(usual.model_copy(update={name: changed.get(name, True)})), name


@pytest.mark.parametrize(
    "given",
    [
        {"beta": {0: 0, 10: 1}},
        {"beta": Auto(forget=0.9)},
        {"participation": Markov([1.0, 0.5], 0.5)},
        {"probabilities": FedAUEstimator(9)},
        {"rule": rules.Guarded(rules.FedStale(), clip_norm=1.0)},
        {"rule": rules.ServerAdam(server_lr=1.0)},
    ],
    ids=repr,
)
def test_what_a_name_does_not_say_goes_to_the_ordinary_loop(given: dict[str, object]) -> None:
    assert not eligible(make_settings(**given))
    (batch,) = plan([make_settings(**given)])
    assert not batch.lockstep


def test_objects_that_names_say_run_in_lock_step() -> None:
    assert eligible(make_settings(rule=rules.FedStale(beta=0.5), probabilities=FedAUEstimator()))


def test_a_sweep_refuses_what_cannot_be_written(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store, pytest.raises(InvalidInput, match=r"rule = .*<lambda>.*cannot be stored"):
        sweep([make_settings(rule=rules.FedStale(beta=lambda t: 0.5))], store, name="own")
