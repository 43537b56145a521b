"""The round loop on quadratics: fast, exact, and everything around the mathematics can be checked."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedstale as fs
from fedstale.durable import FileTrouble
from fedstale.participation import Bernoulli, Markov, Participation, Trace, UniformSample
from fedstale.simulation import Callback, EarlyStop, Record, Simulation, build, make_settings, simulate
from fedstale.store import Store
from fedstale.tasks.quadratic import Quadratic

SMALL: dict[str, Any] = {"task": "quadratic", "num_clients": 4, "p_min": 0.2, "lr": 0.02}


def test_a_run_equals_a_plain_loop_over_the_rule() -> None:
    chosen = make_settings(**SMALL, beta=0.5, rounds=40)
    simulation = build(chosen)
    assert simulation.run() == "finished"
    problem, rule = Quadratic.random(4, 10, 0), fs.FedStale(beta=0.5)
    who = Bernoulli.two_groups(4, 0.2)
    state = rule.init(fs.Federation(4, 10, probabilities=who.probabilities()), model=problem.start)
    for t in range(40):
        clients = who.available(0, t)
        assert state.model is not None
        rule.step(state, fs.Round(t, clients, problem.local_updates(state.model, clients, 5, 0.02)))
    assert np.array_equal(simulation.model, np.asarray(state.model))


def test_metrics_of_a_round() -> None:
    simulation = build(make_settings(**SMALL, rounds=30, evaluate_every=10, probabilities="fedau"))
    simulation.run()
    assert [t for t, r in enumerate(simulation.records) if "excess_loss" in r.metrics] == [9, 19, 29]
    for t, record in enumerate(simulation.records):
        size = len(record.participants)
        assert record.round == t
        assert record.metrics["participants"] == size
        assert record.metrics["bytes_up"] == record.metrics["bytes_down"] == size * 10 * 8
        assert record.metrics["update_norm"] >= 0
        assert record.metrics["seconds"] > 0
        assert 0 <= record.metrics["beta"] <= 1
    last: dict[int, int] = {}
    for t, record in enumerate(simulation.records):
        ages = [t - seen for seen in last.values()]
        assert record.metrics["staleness_max"] == max(ages, default=0)
        assert record.metrics["staleness_mean"] == pytest.approx(np.mean(ages) if ages else 0)
        last.update(dict.fromkeys(record.participants.tolist(), t))
    assert simulation.records[-1].metrics["p_error"] > 0
    known = build(make_settings(**SMALL, rounds=2))
    known.run()
    assert known.records[-1].metrics["p_error"] == 0


def test_stepping_and_stopping() -> None:
    class StopAtFive(Callback):
        def on_round(self, simulation: Simulation, record: Record) -> None:
            simulation.stop = record.round == 4

    simulation = build(make_settings(**SMALL, rounds=20), callbacks=[StopAtFive()])
    assert simulation.step().round == 0
    assert simulation.run(until=2) == "finished"
    assert simulation.state.round == 2
    assert simulation.run() == "stopped"
    assert simulation.state.round == 5
    early = build(
        make_settings(**SMALL, rule="fedstale", rounds=500),
        callbacks=[EarlyStop("excess_loss", 3, larger_is_better=False)],
    )
    assert early.run() == "stopped"
    assert early.state.round < 500


def test_divergence_ends_a_run_at_the_last_good_round() -> None:
    simulation = build(make_settings(**{**SMALL, "lr": 60.0}, rounds=400, beta=1.0))
    with np.errstate(all="ignore"):
        assert simulation.run() == "diverged"
    assert np.isfinite(simulation.model).all()
    assert simulation.state.round == len(simulation.records) < 400


def test_same_participants_for_every_rule_and_seed_changes_them() -> None:
    runs = [simulate(**SMALL, rule=rule, rounds=25, seed=3) for rule in ("fedavg", "fedstale")]
    other = simulate(**SMALL, rule="fedavg", rounds=25, seed=4)
    pairs = list(zip(*(run.participants for run in runs), strict=True))
    assert all(np.array_equal(a, b) for a, b in pairs)
    assert any(not np.array_equal(a, b) for a, b in zip(runs[0].participants, other.participants, strict=True))


def test_objects_in_place_of_names(tmp_path: Path) -> None:
    process = Markov(np.array([1.0, 0.5, 0.5]), 0.5)
    run = simulate(Quadratic.random(3, 2, 1), fs.FedStale(beta=0.3), process, rounds=12, lr=0.05)
    assert run.label == "FedStale β=0.3"
    assert run.metrics["beta"] == pytest.approx(0.3)
    assert [who.tolist() for who in run.participants] == [process.available(0, t).tolist() for t in range(12)]
    sampled = Participation(Bernoulli.uniform(5, 0.9), UniformSample(2))
    assert max(len(who) for who in simulate(Quadratic.random(5, 2), "u-fedavg", sampled, rounds=9).participants) == 2
    trace = Trace.record(process, 0, 12)
    assert simulate(Quadratic.random(3, 2), "fedavg", trace, rounds=12).participants[3].tolist() == [
        *process.available(0, 3)
    ]
    run.to_csv(tmp_path / "run.csv")
    lines = (tmp_path / "run.csv").read_text().splitlines()
    assert len(lines) == 13
    assert lines[0].startswith("round,participants")
    with pytest.raises(fs.InvalidInput, match="the task has 3"):
        simulate(Quadratic.random(3, 2), "fedavg", Bernoulli.uniform(4, 0.5), rounds=3, num_clients=3)


def test_a_full_disk_leaves_the_old_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = simulate(Quadratic.random(3, 2), "fedavg", rounds=3, num_clients=3)
    (tmp_path / "run.csv").write_text("old")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr("csv.writer", full)
    with pytest.raises(FileTrouble, match="the disk is full"):
        run.to_csv(tmp_path / "run.csv")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("run.csv", "old")]


@pytest.mark.parametrize("memory", ["ram", "disk", "disk::bfloat16"])
@pytest.mark.parametrize("rule", ["fedstale", "u-fedvarp", "u-fedavg"])
def test_a_stored_run_resumes_with_the_same_bits(memory: str, rule: str, tmp_path: Path) -> None:
    from fedstale.simulation import StoreRun

    chosen = make_settings(**SMALL, rule=rule, rounds=60, memory=memory, probabilities="fedau")
    with Store.open(tmp_path) as store:
        whole = store.start(chosen.record())
        first = build(chosen, callbacks=[StoreRun(whole, 7)], folder=whole.folder)
        first.run()
        first.state.close()
        run = store.start(chosen.record())
        cut = build(chosen, callbacks=[StoreRun(run, 7)], folder=run.folder)
        for _ in range(25):  # 21 rounds are in the checkpoint, 4 are lost with the process
            record = cut.step()
            for callback in cut.callbacks:
                callback.on_round(cut, record)
        cut.state.close()
        run.flush()
        run.release()
        again = store.resume(run.id)
        resumed = build(chosen, callbacks=[StoreRun(again, 7)], folder=run.folder, resume=True)
        assert resumed.state.round == 21
        again.truncate(resumed.state.round - 1)
        resumed.run()
        resumed.state.close()
        assert np.array_equal(first.model, resumed.model)
        a, b = store.run(whole.id), store.run(run.id)
        assert b.info().rounds_done == 60
        for name in a.metric_names():
            if name != "seconds":
                assert np.array_equal(a.metrics([name])[name], b.metrics([name])[name], equal_nan=True)
        parts = a.participants(), b.participants()
        assert all(np.array_equal(parts[0][t], parts[1][t]) for t in range(60))


def test_simulate_into_a_store(tmp_path: Path) -> None:
    run = simulate(**SMALL, rule="fedstale", rounds=15, store=tmp_path)
    with Store.open(tmp_path) as store:
        (info,) = store.runs()
        assert info.status == "finished"
        assert info.summary["excess_loss"] == pytest.approx(run.final("excess_loss"))
        assert np.array_equal(np.asarray(fs.State.load(info.folder / "checkpoint").model), run.model)
    with pytest.raises(fs.InvalidInput, match="unknown rule"):
        simulate(**SMALL, rule="fedstal", rounds=15, store=tmp_path)
    with Store.open(tmp_path) as store:
        assert len(store.runs()) == 1


def test_training_loss_on_request() -> None:
    pytest.importorskip("torch")
    asked = simulate("digits", "fedavg", p_min=0.5, rounds=4, train_loss=True, threads=1, engine="loop")
    assert asked.metrics["train_loss"][-1] < asked.metrics["train_loss"][0]
    assert "train_loss" not in simulate("digits", "fedavg", p_min=0.5, rounds=1, threads=1, engine="loop").metrics


def test_tensorboard_and_mlflow_get_every_metric(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("tensorboard")
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from fedstale.simulation import MLflow, TensorBoard

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    run = simulate(
        **SMALL,
        rule="fedavg",
        rounds=5,
        callbacks=[TensorBoard(str(tmp_path / "tb")), MLflow(uri, params={"rule": "fedavg"})],
    )
    events = EventAccumulator(str(tmp_path / "tb")).Reload()
    assert [event.value for event in events.Scalars("excess_loss")] == pytest.approx(
        run.metrics["excess_loss"], rel=1e-6
    )
    client = MlflowClient(uri)
    (logged,) = client.search_runs([client.get_experiment_by_name("fedstale").experiment_id])
    assert logged.info.status == "FINISHED"
    assert logged.data.params == {"rule": "fedavg"}
    assert logged.data.metrics["excess_loss"] == pytest.approx(run.final("excess_loss"))
