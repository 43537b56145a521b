"""Any data, model, loss, metric and optimiser: against the plain way, through both engines, and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import fedstale as fs
from fedstale.checks import InvalidInput
from fedstale.tasks.client_data import each
from fedstale.tasks.scores import call
from fedstale.training import LocalTraining, flatten, make

from .shapes import SHAPES, language, normalised, of_dicts, regression, statistics

LOCAL = LocalTraining(lr=0.05, batch_size=4, steps=3)


def plainly(task: fs.Task, training: LocalTraining, client: int, optimizer: Any = torch.optim.SGD) -> tuple[Any, Any]:
    """Local training as one would write it: the update, and the model's buffers."""
    engine = make(task, training, engine="loop")
    module = task.build(0)
    before = flatten(module)
    steps = optimizer(module.parameters(), lr=training.lr)
    for rows in torch.from_numpy(engine.batches([client], 0).rows[0]):
        steps.zero_grad()
        x, y = (each(part, lambda t: t[rows]) for part in (task.train.x, task.train.y))  # noqa: B023
        task.loss(call(module, x), y).backward()  # type: ignore[no-untyped-call]
        if training.clip_gradient is not None:
            nn.utils.clip_grad_norm_(module.parameters(), training.clip_gradient)
        steps.step()
    return before - flatten(module), {name: b.numpy() for name, b in module.named_buffers()}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("threads", [1, 2])
def test_the_loop_trains_as_plain_torch_does(shape: str, threads: int) -> None:
    task = SHAPES[shape]()
    engine = make(task, LOCAL, engine="loop", threads=threads)
    updates = engine.updates(engine.initial, [0, 2, 3], 0)
    for position, client in enumerate((0, 2, 3)):
        expected, buffers = plainly(task, LOCAL, client)
        np.testing.assert_allclose(updates[position], expected, atol=2e-6)
        for name, buffer in buffers.items():
            np.testing.assert_allclose(engine.client_buffers[name][position], buffer, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", ["regression", "dicts"])
def test_engines_agree(shape: str) -> None:
    task = SHAPES[shape]()
    loop, vmap = (make(task, LOCAL, engine=name) for name in ("loop", "vmap"))
    a, b = (engine.updates(engine.initial, [0, 1, 3], 0) for engine in (loop, vmap))
    np.testing.assert_allclose(a, b, atol=2e-6)
    assert loop.evaluate(loop.initial).metrics() == pytest.approx(vmap.evaluate(vmap.initial).metrics())


@pytest.mark.parametrize(("name", "kind"), [("adam", torch.optim.Adam), ("Adagrad", torch.optim.Adagrad)])
@pytest.mark.parametrize("clip", [None, 0.01])
def test_any_optimiser_and_clipping(name: str, kind: Any, clip: float | None) -> None:
    task = regression()
    training = LocalTraining(lr=0.05, batch_size=4, steps=3, optimizer=name, clip_gradient=clip)
    engine = make(task, training)
    assert engine.resolved_name == "loop"
    np.testing.assert_allclose(
        engine.updates(engine.initial, [1], 0)[0], plainly(task, training, 1, kind)[0], atol=1e-6
    )
    own = LocalTraining(lr=0.05, batch_size=4, steps=3, optimizer=lambda p, lr: kind(p, lr=lr), clip_gradient=clip)
    mine = make(task, own)
    np.testing.assert_array_equal(mine.updates(mine.initial, [1], 0), engine.updates(engine.initial, [1], 0))


def test_a_function_that_makes_the_optimiser_is_tried_once_before() -> None:
    def own(parameters: Any, rate: float, *, inertia: float = 0.0) -> torch.optim.Optimizer:
        first, *others = parameters  # what works for the model's parameters, and for one alone does not
        assert others
        return torch.optim.SGD([first, *others], rate, momentum=inertia)

    options: dict[str, Any] = {"lr": 0.05, "batch_size": 4, "steps": 3, "optimizer": own}
    engine = make(regression(), LocalTraining(**options, optimizer_options={"inertia": 0.5}))
    assert engine.updates(engine.initial, [1], 0).any()
    with pytest.raises(InvalidInput, match=r"optimizer = 'own': cannot be made with .*'speed': 1.*: .*'speed'"):
        make(regression(), LocalTraining(**options, optimizer_options={"speed": 1}))
    with pytest.raises(InvalidInput, match="optimizer = '<lambda>': must return an optimiser of torch, not NoneType"):
        make(regression(), LocalTraining(**{**options, "optimizer": lambda parameters, rate: None}))


def test_clipping_of_sgd_is_that_of_torch() -> None:
    task, training = regression(), LocalTraining(lr=0.05, batch_size=4, steps=3, clip_gradient=0.1)
    engine = make(task, training)
    np.testing.assert_allclose(engine.updates(engine.initial, [2], 0)[0], plainly(task, training, 2)[0], atol=1e-6)


def test_a_proximal_term_reaches_the_optimiser() -> None:
    task = regression()
    engine = make(task, LocalTraining(lr=0.05, batch_size=4, steps=3, optimizer="adam"))
    without = engine.updates(engine.initial, [0], 0).copy()
    first, strong = (
        engine.updates(engine.initial, [0], 0, prox=0.0).copy(),
        engine.updates(engine.initial, [0], 0, prox=50),
    )
    np.testing.assert_array_equal(first, without)
    assert np.linalg.norm(strong) < 0.9 * np.linalg.norm(without)


@pytest.mark.parametrize(
    ("training", "told"),
    [
        ({"optimizer": "adamm"}, "unknown optimizer 'adamm': did you mean adam"),
        ({"optimizer": "lbfgs"}, "several times a step"),
        ({"optimizer": "adam", "optimizer_options": {"beta": 1}}, "optimizer_options: beta = 1: Adam has betas"),
        ({"optimizer": "adam", "optimizer_options": {"betas": (2.0, 2.0)}}, "Invalid beta"),
        ({"optimizer": "adam", "momentum": 0.9}, "momentum = 0.9: is of sgd"),
        ({"clip_gradient": 0.0}, "clip_gradient = 0.0"),
        ({"optimizer": 3}, "optimizer = 3: must be a name"),
    ],
)
def test_wrong_optimisers_are_named(training: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        make(regression(), LocalTraining(lr=0.1, **training))


@pytest.mark.parametrize(
    ("task", "options", "told"),
    [
        (statistics, {}, r"1 \(BatchNorm2d\) keeps: use engine='loop'"),
        (language, {}, "cannot be vectorised"),
        (regression, {"optimizer": "adam"}, "optimisers other than sgd: use engine='loop'"),
        (regression, {"clip_gradient": 1.0}, "gradient clipping: use engine='loop'"),
    ],
)
def test_what_vmap_cannot_do_is_said_and_auto_takes_the_loop(task: Any, options: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        make(task(), LocalTraining(lr=0.1, **options), engine="vmap")
    assert make(task(), LocalTraining(lr=0.1, **options), engine="auto").resolved_name == "loop"


class Counting(nn.Module):
    """Counts its calls in a buffer, which no check for normalisation layers would notice."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 1)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("scale", torch.full((2,), 0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.calls += 1
        out: torch.Tensor = self.linear(x).squeeze(-1)
        return out


def counting() -> fs.Task:
    data = regression()
    return fs.Task("counting", data.train, data.test, Counting, functional.mse_loss, None, data.groups)


def test_a_buffer_that_changes_is_no_matter_for_vmap() -> None:
    with pytest.raises(InvalidInput, match="changes its buffer calls"):
        make(counting(), LOCAL, engine="vmap")


def test_buffers_are_averaged_over_everybodys_last_and_constants_stay(tmp_path: Path) -> None:
    participation = fs.Bernoulli(np.array([1.0, 1.0, 0.5, 0.5]))
    run = fs.simulate(counting(), "fedavg", participation, rounds=6, local_steps=3, batch_size=4, store=tmp_path)
    state = run.model_state()
    assert state["scale"].tolist() == [pytest.approx(0.1)] * 2
    # Everybody starts from the mean and adds three calls; who is absent keeps what it sent last.
    sent: dict[int, float] = {}
    mean = 0.0
    for clients in run.participants:
        sent |= dict.fromkeys(clients.tolist(), mean + 3)
        mean = float(np.float32(np.mean(list(sent.values()))))
    assert float(state["calls"]) == pytest.approx(mean, rel=1e-5)


def test_running_statistics_are_the_mean_of_the_clients_and_part_of_the_result() -> None:
    task = statistics()
    engine = make(task, LocalTraining(lr=0.05, batch_size=4, steps=3))
    engine.updates(engine.initial, np.arange(4), 0)
    expected = engine.client_buffers["1.running_mean"].mean(axis=0)
    run = fs.simulate(task, "fedavg", fs.Bernoulli(np.ones(4)), rounds=1, lr=0.05, batch_size=4, local_steps=3)
    state = run.model_state()
    np.testing.assert_allclose(state["1.running_mean"], expected, rtol=1e-5)
    module = normalised()
    module.load_state_dict(state)
    module.eval()
    x, y = task.test.x, task.test.y
    assert isinstance(x, torch.Tensor)
    assert isinstance(y, torch.Tensor)
    right = float((module(x).argmax(1) == y).double().mean())
    assert run.final("accuracy") == pytest.approx(right)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_resumed_run_has_the_same_bits(shape: str, optimizer: str, tmp_path: Path) -> None:
    task = SHAPES[shape]()
    options: dict[str, Any] = {"lr": 0.02, "p_min": 0.5, "optimizer": optimizer, "local_steps": 2, "rounds": 6}
    whole = fs.simulate(task, "fedstale", **options)

    class Stop(fs.simulation.Callback):
        def on_round(self, simulation: Any, record: Any) -> None:
            simulation.stop = record.round == 2

    half = fs.simulate(task, "fedstale", store=tmp_path, callbacks=[Stop()], **options)
    assert half.state.round == 3
    half.state.close()
    run = fs.store.Store.open(tmp_path).runs()[0].id
    rest = fs.resume(run, store=tmp_path, task=SHAPES[shape]())
    np.testing.assert_array_equal(rest.model, whole.model)
    for name, tensor in whole.model_state().items():
        assert torch.equal(rest.model_state()[name], tensor)
    assert rest.final("test_loss") == whole.final("test_loss")


def test_every_shape_learns() -> None:
    for shape, metric, bound in [("regression", "mae", 0.3), ("language", "accuracy", 0.9), ("dicts", "test_loss", 9)]:
        run = fs.simulate(SHAPES[shape](), "fedavg", fs.Bernoulli(np.ones(4)), rounds=60, lr=0.02, optimizer="adam")
        assert (run.final(metric) > bound) == (metric == "accuracy"), (shape, run.final(metric))


def test_regression_is_told_by_the_loss_of_groups_and_of_the_worst_clients() -> None:
    task = regression()
    engine = make(task, LOCAL)
    seen = engine.evaluate(engine.initial)
    metrics = seen.metrics()
    assert list(metrics) == ["test_loss", "test_loss_group0", "test_loss_group1", "test_loss_worst_decile", "mae"]
    module = engine.module(engine.initial)
    each_client = []
    for client in range(4):
        x, y = task.client_data(client, "test")
        each_client.append(float(functional.mse_loss(module(x), y)))
    assert metrics["test_loss_worst_decile"] == pytest.approx(max(each_client), rel=1e-5)
    np.testing.assert_allclose(seen.client_losses, each_client, rtol=1e-5)
    assert np.isnan(seen.accuracy)


def test_a_metric_that_is_one_number_is_the_clients_and_weighs_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedstale.training.evaluation._EVALUATION_BYTES", 500)  # several pieces of a client

    def largest(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (outputs - y).abs().max()

    task = regression(metrics={"largest": largest})
    engine = make(task, LOCAL)
    module = engine.module(engine.initial)
    values = [float(largest(module(x), y).detach()) for x, y in (task.client_data(i, "test") for i in range(4))]
    expected = np.average(values, weights=task.test.sizes)
    assert engine.evaluate(engine.initial).metrics()["largest"] == pytest.approx(expected, rel=1e-5)


def test_scaffold_is_refused_with_another_optimiser_and_not_with_sgd() -> None:
    with pytest.raises(InvalidInput, match="of plain sgd"):
        fs.simulate(regression(), "scaffold", rounds=2, optimizer="adam")
    assert fs.simulate(regression(), "scaffold", rounds=2).final("test_loss") > 0


def test_methods_can_be_compared_by_the_test_loss() -> None:
    found = fs.compare(regression(), rules=["fedavg", "fedstale:auto"], rounds=4, seeds=2, progress=False)
    assert found.metric == "test_loss"
    assert "test loss" in str(found)
    assert "accuracy" not in str(found)
    assert found.summary()


def test_accuracies_of_clients_are_refused_where_there_are_none() -> None:
    with pytest.raises(InvalidInput, match="per_client = True: records accuracies"):
        fs.simulate(regression(), rounds=1, per_client=True)


def test_items_that_are_dicts_keep_their_dtypes() -> None:
    x = of_dicts().train.x
    assert isinstance(x, dict)
    assert (x["ids"].dtype, x["numbers"].dtype) == (torch.int64, torch.float32)
