"""Both engines against the plain loop, against each other, and against themselves."""

import copy
import hashlib
import logging
import subprocess
import sys
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedstale import tasks, training
from fedstale.checks import InvalidInput
from fedstale.training import Batches, Engine, LocalTraining, make

from .problems import MODELS, cnn, mlp, plain_updates, relative, run, task

CLIENTS = np.array([2, 0, 3])
ENGINES = ("loop", "vmap")
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "decay": {"weight_decay": 0.1},
    "both": {"momentum": 0.5, "weight_decay": 0.05},
    "distinct": {"batch_size": 7, "replacement": False},
    "epochs": {"epochs": 2, "momentum": 0.5},
}
EXTRAS = ("none", "linear", "prox", "all")


def built(model: Any = mlp, *, name: str = "loop", losses: bool = False, threads: int = 2, **settings: Any) -> Engine:
    local = LocalTraining(**{"lr": 0.1, "batch_size": 8, **settings})
    return make(task(model), local, engine=name, seed=3, threads=threads, losses=losses)


def combinations() -> list[Any]:
    """All of them; a third is not slow, in which every two of setting, extra term and model meet."""
    every = product(enumerate(SETTINGS), enumerate(EXTRAS), enumerate(MODELS))
    return [
        pytest.param(model, settings, extra, marks=[] if (s + e + m) % len(MODELS) == 0 else [pytest.mark.slow])
        for (s, settings), (e, extra), (m, model) in every
    ]


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize(("model", "settings", "extra"), combinations())
def test_updates_are_those_of_a_plain_loop(name: str, model: str, settings: str, extra: str) -> None:
    engine = built(MODELS[model], name=name, threads=1, **SETTINGS[settings])
    local, start = engine.setup.training, engine.initial
    rng = np.random.default_rng(0)
    terms: dict[str, Any] = {}
    if extra in ("linear", "all"):
        terms["linear"] = rng.normal(scale=0.3, size=(3, engine.num_params)).astype(np.float32)
    if extra in ("prox", "all"):
        terms["prox"] = 0.7
    if extra == "all":
        start = (start + rng.normal(scale=0.1, size=(3, engine.num_params))).astype(np.float32)
    updates = engine.updates(start, CLIENTS, 4, **terms)
    expected = plain_updates(engine.setup.task, local, start, engine.batches(CLIENTS, 4), local.rate(4), **terms)
    assert updates.shape == (3, engine.num_params)
    assert updates.dtype == np.float32
    for own, plain in zip(updates, expected, strict=True):
        assert relative(own, plain) < 5e-6


@pytest.mark.parametrize("name", ENGINES)
def test_the_same_seed_gives_the_same_bits(name: str) -> None:
    for model in MODELS.values():
        first = run(built(model, name=name, momentum=0.9), 4, np.arange(4))
        again = run(built(model, name=name, momentum=0.9), 4, np.arange(4))
        assert first.tobytes() == again.tobytes()


@pytest.mark.parametrize("name", ENGINES)
def test_the_number_of_threads_changes_no_bits(name: str) -> None:
    for model in (mlp, cnn):
        one = run(built(model, name=name, threads=1), 4, np.arange(4))
        three = run(built(model, name=name, threads=3), 4, np.arange(4))
        assert one.tobytes() == three.tobytes()


def test_engines_leave_torch_as_they_found_it() -> None:
    before = torch.get_num_threads()
    state = torch.random.get_rng_state()
    dropout = lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Dropout(0.5), nn.Linear(32, 4))  # noqa: E731
    for model in (mlp, cnn, dropout):
        engine = built(model, threads=3)
        engine.updates(engine.initial, CLIENTS, 0)
        engine.evaluate(engine.initial)
    assert torch.get_num_threads() == before
    assert torch.equal(torch.random.get_rng_state(), state)


def test_loop_and_vmap_agree_after_twenty_rounds_on_the_digits() -> None:
    digits = tasks.make("digits-mlp", swap=0.5, progress=False)
    local = LocalTraining(lr=digits.default_lr, batch_size=digits.batch_size)
    loop, vmap = (run(make(digits, local, engine=name, seed=1), 20, np.arange(24)) for name in ENGINES)
    assert relative(vmap, loop) < 1e-5
    engine = make(digits, local, engine="loop", seed=1)
    assert engine.evaluate(loop).accuracy > engine.evaluate(engine.initial).accuracy + 0.3


def test_clients_do_not_disturb_each_other() -> None:
    for name in ENGINES:
        for model in (mlp, cnn):
            engine = built(model, name=name, epochs=1)
            together = engine.updates(engine.initial, CLIENTS, 1).copy()
            for i, client in enumerate(CLIENTS):
                alone = engine.updates(engine.initial, np.array([client]), 1)[0]
                assert relative(alone, together[i]) < 1e-6


def test_chunks_of_clients_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = built(name="vmap", momentum=0.9)
    linear = np.random.default_rng(1).normal(size=(4, engine.num_params)).astype(np.float32)
    whole = engine.updates(engine.initial, np.arange(4), 0, linear=linear).copy()
    monkeypatch.setattr("fedstale.training.vmap._CHUNK_BYTES", 1)
    assert relative(engine.updates(engine.initial, np.arange(4), 0, linear=linear), whole) < 1e-6


@pytest.mark.parametrize("name", ENGINES)
def test_rows_may_have_rates_of_their_own(name: str) -> None:
    for momentum in (0.0, 0.9):
        for epochs in (None, 1):
            engine = built(name=name, momentum=momentum, weight_decay=0.1, epochs=epochs)
            batches = engine.batches(CLIENTS, 0)
            rates = np.array([0.3, 0.1, 0.05])
            updates = engine.train(engine.initial, batches, rates).copy()
            for i, rate in enumerate(rates):
                sizes = None if batches.sizes is None else batches.sizes[i : i + 1]
                own = Batches(batches.rows[i : i + 1], sizes)
                assert relative(updates[i], engine.train(engine.initial, own, rate)[0]) < 1e-5


@pytest.mark.parametrize("name", ENGINES)
def test_the_schedule_reaches_the_steps(name: str) -> None:
    halved = built(name=name, schedule="step:1:0.5")
    given = halved.train(halved.initial, halved.batches(CLIENTS, 2), 0.025).copy()
    assert np.array_equal(halved.updates(halved.initial, CLIENTS, 2), given)
    ended = built(name=name, schedule="cosine:3")
    assert not ended.updates(ended.initial, CLIENTS, 3).any()


@pytest.mark.parametrize("name", ENGINES)
def test_nobody_takes_part(name: str) -> None:
    engine = built(name=name)
    assert engine.updates(engine.initial, np.empty(0, dtype=np.int64), 0).shape == (0, engine.num_params)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("settings", [{"steps": 3}, {"epochs": 2}])
@pytest.mark.parametrize("model", MODELS)
def test_training_losses(name: str, settings: dict[str, Any], model: str) -> None:
    engine = built(MODELS[model], name=name, losses=True, lr=1e-12, **settings)
    nothing_yet = engine.losses
    assert nothing_yet is None
    engine.updates(engine.initial, CLIENTS, 0)
    losses = engine.losses
    assert losses is not None
    # At a vanishing rate, the loss of every step is that of the initial model.
    module, data, batches = engine.module(engine.initial), engine.setup.task.train, engine.batches(CLIENTS, 0)
    for i in range(3):
        values = []
        for k in range(int(batches.steps[i])):
            rows = batches.rows[i, k] if batches.sizes is None else batches.rows[i, k, : batches.sizes[i, k]]
            batch = torch.from_numpy(rows)
            values.append(functional.cross_entropy(module(data.x[batch]), data.y[batch]).item())
        assert np.isclose(losses[i], np.mean(values), rtol=1e-5)
    quiet = built(MODELS[model], name=name, **settings)
    quiet.updates(quiet.initial, CLIENTS, 0)
    assert quiet.losses is None


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("model", ["mlp", "cnn"])
@pytest.mark.filterwarnings("ignore:this processor")
def test_bfloat16_is_close_and_keeps_float32_weights(name: str, model: str) -> None:
    problem, local = task(MODELS[model]), LocalTraining(lr=0.1, batch_size=16)
    half, single = (make(problem, local, engine=name, precision=p) for p in ("bfloat16", "float32"))
    rough, exact = (engine.updates(engine.initial, CLIENTS, 0) for engine in (half, single))
    assert 1e-5 < relative(rough, exact) < 0.05
    assert rough.dtype == np.float32
    # Not a multiple of what bfloat16 can tell apart: the weights are kept in float32.
    after = single.initial - rough[0]
    assert (torch.from_numpy(after).bfloat16().float().numpy() != after).mean() > 0.9


def test_other_losses_are_vectorised_too() -> None:
    def smoothed(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(logits, y, label_smoothing=0.2)

    problem, local = task(mlp, loss=smoothed), LocalTraining(lr=0.1, batch_size=8)
    loop, vmap = (make(problem, local, engine=name) for name in ENGINES)
    updates = vmap.updates(vmap.initial, CLIENTS, 0)
    assert relative(updates, loop.updates(loop.initial, CLIENTS, 0)) < 1e-5
    usual = make(task(mlp), local, engine="vmap")
    assert relative(usual.updates(usual.initial, CLIENTS, 0), updates) > 1e-2


def test_the_loss_as_a_module_is_the_same_loss() -> None:
    local = LocalTraining(lr=0.1, batch_size=8)
    function, module = (
        make(task(mlp, loss=loss), local, engine="vmap") for loss in (functional.cross_entropy, nn.CrossEntropyLoss())
    )
    expected = function.updates(function.initial, CLIENTS, 0)
    assert np.array_equal(module.updates(module.initial, CLIENTS, 0), expected)


def test_dropout_draws_the_same_numbers_whatever_the_threads() -> None:
    model = lambda: nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(36, 4))  # noqa: E731
    one, two = built(model, threads=1), built(model, threads=2)
    expected = one.updates(one.initial, CLIENTS, 0).copy()
    assert np.array_equal(two.updates(two.initial, CLIENTS, 0), expected)
    assert np.array_equal(one.updates(one.initial, CLIENTS[1:], 0), expected[1:])
    assert not np.array_equal(one.updates(one.initial, CLIENTS, 1), expected)
    plain = plain_updates(one.setup.task, one.setup.training, one.initial, one.batches(CLIENTS, 0), 0.1)
    assert relative(plain, expected) > 0.1
    with pytest.raises(InvalidInput, match="dropout"):
        built(model, name="vmap")
    assert built(model, name="auto").updates(one.initial, CLIENTS, 0).shape == expected.shape


def test_frozen_and_unused_parameters() -> None:
    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frozen = nn.Linear(36, 36).requires_grad_(False)
            self.unused = nn.Linear(3, 3)
            self.used = nn.Linear(36, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.used(torch.tanh(self.frozen(x.flatten(1))))
            return out

    loop, vmap = (built(Partly, name=name) for name in ENGINES)
    assert loop.num_params == 3 * 3 + 3 + 36 * 4 + 4
    updates = loop.updates(loop.initial, CLIENTS, 0)
    assert not updates[:, :12].any()
    assert updates[:, 12:].any(axis=0).all()
    assert relative(vmap.updates(vmap.initial, CLIENTS, 0), updates) < 1e-5


@pytest.mark.parametrize("model", ["mlp", "residual"])
def test_fastest_has_the_bits_of_what_it_chose(model: str, caplog: pytest.LogCaptureFixture) -> None:
    engine = built(MODELS[model], name="fastest")
    early = engine.resolved_name
    assert engine.updates(engine.initial, np.empty(0, dtype=np.int64), 0).shape[0] == 0
    assert (early, engine.resolved_name) == (None, None)
    with caplog.at_level(logging.INFO, "fedstale.training"):
        result = run(engine, 3, np.arange(4))
    assert engine.resolved_name in ENGINES
    assert f"engine: {engine.resolved_name}" in caplog.text
    assert isinstance(engine, training.FastestEngine)
    assert set(engine.timings) == set(ENGINES)
    assert min(engine.timings, key=lambda name: engine.timings[name]) == engine.resolved_name
    assert result.tobytes() == run(built(MODELS[model], name=engine.resolved_name), 3, np.arange(4)).tobytes()


def test_fastest_takes_the_faster_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedstale.training import fastest

    for fast in ENGINES:
        monkeypatch.setattr(fastest, "_seconds", lambda engine, job, fast=fast: 1.0 if engine.name == fast else 2.0)
        engine = built(name="fastest")
        engine.updates(engine.initial, CLIENTS, 0)
        assert engine.resolved_name == fast


def test_auto_looks_at_the_model_and_never_at_a_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal seeds give equal bits on one machine, however busy it is."""

    def forbidden() -> float:
        raise AssertionError("a run that may repeat its bits does not time anything")

    monkeypatch.setattr("time.perf_counter", forbidden)
    wide = lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 6000), nn.ReLU(), nn.Linear(6000, 4))  # noqa: E731
    for model, wanted in ((MODELS["mlp"], "vmap"), (wide, "loop"), (MODELS["residual"], "loop")):
        engine = built(model, name="auto")
        assert engine.resolved_name == wanted
        assert run(engine, 2, np.arange(4)).tobytes() == run(built(model, name=wanted), 2, np.arange(4)).tobytes()


@pytest.mark.parametrize(("clients", "wanted"), [(1, "loop"), (2, "vmap"), (8, "vmap")])
def test_auto_vectorises_from_two_clients_on(clients: int, wanted: str) -> None:
    one = training.make(task(sizes=(20,) * clients), training.LocalTraining(lr=0.1, batch_size=8), engine="auto")
    assert one.resolved_name == wanted


@pytest.mark.parametrize(("clients", "wanted"), [(7, "loop"), (8, "vmap")])
def test_auto_vectorises_other_models_of_many_clients(clients: int, wanted: str) -> None:
    one = training.make(
        task(MODELS["residual"], sizes=(20,) * clients), training.LocalTraining(lr=0.1, batch_size=8), engine="auto"
    )
    assert one.resolved_name == wanted


def test_fastest_on_ragged_rounds_with_every_extra() -> None:
    engine, loop = (built(name=name, epochs=2, momentum=0.9) for name in ("fastest", "loop"))
    rng = np.random.default_rng(0)
    starts, linear = rng.normal(scale=0.1, size=(2, 3, engine.num_params)).astype(np.float32)
    updates = engine.updates(starts, CLIENTS, 0, linear=linear, prox=0.1)
    assert relative(updates, loop.updates(starts, CLIENTS, 0, linear=linear, prox=0.1)) < 1e-5


def test_a_forked_process_starts_threads_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = built()
    expected = engine.updates(engine.initial, CLIENTS, 0).copy()
    pool = engine.setup.workers._pool
    monkeypatch.setattr("fedstale.training.setup.os.getpid", lambda: -1)
    assert np.array_equal(engine.updates(engine.initial, CLIENTS, 0), expected)
    assert engine.setup.workers._pool is not pool


@pytest.mark.slow
def test_processes_draw_the_same_batches_and_bits() -> None:
    """What a worker process computes is what this one computes."""
    program = (
        "import numpy as np, hashlib\n"
        "from tests.training.test_engines import built, CLIENTS\n"
        "engine = built(threads=1)\n"
        "print(hashlib.sha256(engine.updates(engine.initial, CLIENTS, 0).tobytes()).hexdigest())\n"
    )
    outputs = {
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    }
    engine = built()
    own = hashlib.sha256(engine.updates(engine.initial, CLIENTS, 0).tobytes()).hexdigest()
    assert outputs == {own + "\n"}


def test_the_updates_array_is_reused() -> None:
    engine = built()
    first = engine.updates(engine.initial, CLIENTS, 0)
    kept = copy.deepcopy(first)
    second = engine.updates(engine.initial, CLIENTS, 1)
    assert np.shares_memory(first, second)
    assert not np.array_equal(first, kept)
