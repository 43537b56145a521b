"""Every rule in a real run: both engines agree, and a run that is saved, killed and resumed ends with the same bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedstale as fs
from fedstale import rules
from fedstale.rules.anchors import AnchorState
from fedstale.simulation import Simulation, build, make_settings
from fedstale.simulation.methods import _ALL
from tests.combinations import combinations
from tests.everything import everything

NAMES = [*rules.RULES, "fedstale+adam"]
SMALL: dict[str, Any] = {"num_clients": 6, "p_min": 0.4, "rounds": 14, "local_steps": 3, "batch_size": 16}
QUICK = {"svrg": {"period": 3}, "scsg": {"period": 3}, "sarah": {"period": 3}, "spider": {"period": 3}}
pytestmark = pytest.mark.filterwarnings("ignore::fedstale.rules.OutsideCoverage")


def model(name: str, **more: Any) -> Any:
    simulation = build(make_settings(task="digits-mlp", rule=name, **SMALL, rule_options=QUICK.get(name, {}) | more))
    assert simulation.run() == "finished"
    return simulation.model


@pytest.mark.parametrize(("name", "more"), [*((name, {}) for name in NAMES), ("scaffold", {"option": "I"})])
def test_loop_and_vmap_agree(name: str, more: dict[str, Any]) -> None:
    pytest.importorskip("torch")
    models = []
    for engine in ("loop", "vmap"):
        options = QUICK.get(name, {}) | more
        chosen = make_settings(
            task="digits-mlp", rule=name, engine=engine, **SMALL | {"rounds": 8}, rule_options=options
        )
        simulation = build(chosen)
        assert simulation.run() == "finished"
        models.append(simulation.model)
    assert np.linalg.norm(models[0] - build(chosen).model) > 0.01
    assert models[0] == pytest.approx(models[1], abs=2e-4 if "+" in name else 2e-5)


@pytest.mark.parametrize(("name", "memory"), combinations(NAMES, ["ram", "lowrank:2"]))
def test_resumed_in_the_middle(name: str, memory: str, tmp_path: Path) -> None:
    chosen = make_settings(
        task="quadratic", **SMALL | {"lr": 0.05}, rule=name, memory=memory, rule_options=QUICK.get(name, {})
    )

    def run(saved: fs.State | None, until: int) -> Simulation:
        made = build(chosen)
        again = Simulation(
            trainer=made.trainer,
            rule=made.rule,
            participation=made.participation,
            estimator=made.estimator,
            federation=made.federation,
            rounds=made.rounds,
            memory=memory,
            resume_from=saved,
        )
        again.run(until)
        return again

    whole = run(None, 14)
    first = run(None, 8)
    first.state.save(tmp_path)
    first.state.close()
    resumed = run(fs.State.load(tmp_path), 14)
    assert np.array_equal(whole.model, resumed.model)
    assert everything(whole.state) == everything(resumed.state)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_two_trainings_of_a_round_use_the_same_batches(engine: str) -> None:
    """Between anchors the rule is given Δ_i(w_t) and Δ_i(w̃), not one of them twice."""
    pytest.importorskip("torch")
    chosen = make_settings(task="digits-mlp", rule="svrg", engine=engine, **SMALL | {"p_min": 1.0})
    simulation = build(chosen)
    simulation.run(3)
    everyone, trainer = np.arange(6), simulation.trainer
    told = simulation._train(3, everyone, np.ones(6))
    again = np.array(told.second_pass)
    anchor = simulation.state.own(AnchorState).model
    assert anchor is not None
    assert np.array_equal(anchor, build(chosen).model)
    assert np.array_equal(again, trainer.updates(anchor, everyone, 3))
    assert np.array_equal(told.updates, trainer.updates(simulation.model, everyone, 3))
    assert np.abs(told.updates - again).max() > 1e-4


def test_epochs_tell_the_steps_and_the_gradient() -> None:
    """Ragged epochs: K_i differs by client, and SCAFFOLD's option I sees every sample of the round once."""
    pytest.importorskip("torch")
    chosen = make_settings(
        task="digits-mlp",
        num_clients=4,
        p_min=1.0,
        rounds=2,
        partition="dirichlet",
        partition_options={"alpha": 0.5},
        epochs=1,
        batch_size=32,
        rule="scaffold",
        rule_options={"option": "I"},
    )
    simulation = build(chosen)
    trainer: Any = simulation.trainer
    steps, lr = trainer.steps_and_lr(np.arange(4), 0)
    sizes = trainer.task.train.sizes
    assert np.array_equal(steps, -(-np.asarray(sizes) // 32))
    assert len(set(steps.tolist())) > 1
    start = simulation.model.copy()
    got = np.array(trainer.updates(start, np.arange(4), 0, rules.Local(gradient=True)))
    task, torch = trainer.task, __import__("torch")
    for client in range(4):
        module = trainer.engine.module(start)
        first, last = task.train.offsets[client : client + 2]
        x, y = torch.as_tensor(task.train.x[first:last]), torch.as_tensor(task.train.y[first:last])
        torch.nn.functional.cross_entropy(module(x.float()), y.long()).backward()
        gradient = np.concatenate([parameter.grad.numpy().ravel() for parameter in module.parameters()])
        assert got[client] / lr == pytest.approx(gradient, abs=1e-4)
    assert simulation.run() == "finished"


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_a_recursion_over_gradients_on_whole_data_is_plain_descent(engine: str) -> None:
    """Where every batch is all of a client's data, g_k telescopes to ∇F_i(w_k), if g_0 is ∇F_i(w_t)."""
    pytest.importorskip("torch")
    shape: dict[str, Any] = {
        "partition": "dirichlet",
        "partition_options": {"alpha": 0.5},
        "batch_size": 2000,
        "replacement": False,
    }
    chosen = make_settings(task="digits-mlp", num_clients=4, p_min=1.0, rounds=1, epochs=3, engine=engine, **shape)
    trainer: Any = build(chosen).trainer
    start, everyone = trainer.initial(), np.arange(4)
    plain = np.array(trainer.updates(start, everyone, 0))
    batches, rate = trainer.engine.batches(everyone, 0), trainer.steps_and_lr(everyone, 0)[1]
    assert batches.rows.shape[1] == 3
    first = np.array(trainer.engine.train(start, type(batches)(batches.rows[:, :1], batches.sizes[:, :1]), 1.0))
    got = trainer.updates(start, everyone, 0, rules.Local(linear=first, recursive=True))
    assert got == pytest.approx(plain, abs=1e-6)
    assert np.abs(got - 3 * rate * first).max() > 1e-3  # the direction changes on the way


def test_a_recursion_takes_plain_steps_only() -> None:
    pytest.importorskip("torch")
    chosen = make_settings(task="digits-mlp", rule="fedamd", momentum=0.9, **SMALL)
    with pytest.raises(fs.InvalidInput, match="plain sgd"):
        build(chosen).step()


@pytest.mark.usefixtures("unrendered")
def test_compare_all_on_the_command_line(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from fedstale.cli.app import app

    common = ["compare", "quadratic", "--num-clients", "4", "--lr", "0.02", "--rounds", "20", "--seeds", "1"]
    done = CliRunner().invoke(app, [*common, "--rules", "all", "--folder", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)
    assert [row["method"] for row in rows] == [method.label for method in _ALL]
    by_name = {row["method"]: row for row in rows}
    assert by_name["SCAFFOLD"]["bytes"] == 2 * by_name["FedAvg"]["bytes"]
    assert by_name["SVRG"]["rounds lost"] > 0
    assert by_name["FedAvg"]["rounds lost"] is None
    assert by_name["FedStale β=auto"]["server bytes"] > by_name["FedLaAvg"]["server bytes"] > 0
    some = "fedstale+adam:0.5,fedstale:auto@clustered:2"
    done = CliRunner().invoke(app, [*common, "--rules", some, "--folder", str(tmp_path), "--quiet"])
    assert "FedStale+adam β=0.5" in done.stdout
    assert "FedStale β=auto, clustered:2" in done.stdout
    assert "server MB" in done.stdout


def test_every_method_is_in_the_comparison_and_has_a_label() -> None:
    assert {str(method.rule).partition("+")[0] for method in _ALL} == set(rules.RULES)
    assert len({method.label for method in _ALL}) == len(_ALL)
