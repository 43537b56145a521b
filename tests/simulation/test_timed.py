"""Simulations in time: the round loop is their special case, bit for bit; and pending work survives a kill."""

from __future__ import annotations

from heapq import heapify
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedstale as fs
from fedstale.clock import Equal, Event, EventQueue, LogNormal, Synchronous
from fedstale.simulation import Callback, Record, Simulation, TimedSimulation, build, make_settings, simulate
from fedstale.state import State
from fedstale.store import Store
from tests.everything import everything

SMALL: dict[str, Any] = {"task": "quadratic", "num_clients": 5, "p_min": 0.5, "lr": 0.02, "rounds": 30}
TIMED: dict[str, Any] = {"devices": "log-normal", "device_options": {"spread": 1.5}}
SERVERS: dict[str, dict[str, Any]] = {
    "deadline": {"server": "synchronous", "deadline": 0.6},
    "deadline, discard": {"server": "synchronous", "deadline": 0.6, "server_options": {"late": "discard"}},
    "wait for 2": {"server": "synchronous", "server_options": {"wait_for": 2}},
    "over-selection": {"server": "synchronous", "server_options": {"wait_for": 2, "over_select": 0.5}},
    "in time": {"server": "synchronous", "deadline": 0.6, "slot_seconds": 0.3},
    "buffered": {"server": "buffered", "server_options": {"size": 3}},
    "buffered, few": {"server": "buffered", "server_options": {"size": 2, "concurrency": 2}, "slot_seconds": 0.4},
    "buffered, deadline": {"server": "buffered", "server_options": {"size": 3}, "deadline": 0.3},
    "asynchronous": {"server": "asynchronous"},
}
servers = pytest.mark.parametrize("server", SERVERS.values(), ids=SERVERS.keys())


def timed(**changes: Any) -> TimedSimulation:
    simulation = build(make_settings(**{**SMALL, **TIMED, **changes}))
    assert isinstance(simulation, TimedSimulation)
    return simulation


@pytest.mark.parametrize("rule", ["fedavg", "fedstale", "tempered", "mifa", "scaffold", "svrg", "fedau", "feddyn"])
@pytest.mark.parametrize("extra", [{}, {"selection": "uniform", "selection_options": {"m": 2}}], ids=["all", "sample"])
def test_equal_devices_and_a_long_deadline_are_the_round_loop_bit_for_bit(rule: str, extra: dict[str, Any]) -> None:
    rounds = build(make_settings(**SMALL, **extra, rule=rule))
    rounds.run()
    made = make_settings(**SMALL, **extra, rule=rule, server="synchronous", deadline=60.0, probabilities="known")
    in_time = build(made)
    in_time.run()
    assert np.array_equal(rounds.model, in_time.model)
    for one, other in zip(rounds.records, in_time.records, strict=True):
        assert one.participants.tolist() == other.participants.tolist()
        for name, value in one.metrics.items():
            if name != "seconds":
                assert other.metrics[name] == value, name


def test_the_round_loop_on_a_task_with_data_too() -> None:
    common: dict[str, Any] = {"task": "digits-mlp", "num_clients": 6, "rounds": 4, "p_min": 0.5, "rule": "tempered"}
    rounds = simulate(**common, progress=False)
    in_time = simulate(**common, server="synchronous", deadline=60.0, probabilities="known", progress=False)
    assert np.array_equal(rounds.model, in_time.model)
    assert in_time.metrics["virtual_seconds"][-1] > 0


def test_a_deadline_splits_devices_into_those_in_time_and_those_late() -> None:
    """By hand: K = 5 steps; the slow device takes 8 times as long, and the deadline cuts it off."""
    simulation = timed(
        **{**SERVERS["deadline"], "devices": "two-classes", "deadline": 1.0, "p_min": 1.0, "rule": "mifa"},
        device_options={"slow_share": 0.2, "slowdown": 3.0, "steps_per_second": 10.0, "down": 1e9, "up": 1e9},
    )
    slow = int(np.argmin(simulation.devices.speeds(0, 5, 0).steps))
    simulation.run()
    fast = [client for client in range(5) if client != slow]
    # The others take 0.5 s, the slow one 1.5 s and a little: round 0 lasts until the deadline, rounds 1 and 2 are short
    # because it is not asked in them; its reply comes in round 2, is remembered before round 3, and so on.
    for record in simulation.records:
        assert record.participants.tolist() == fast
        assert record.metrics["late"] == (record.round > 0 and record.round % 3 == 0)
    assert simulation.clock.now == pytest.approx(10 * (1.0 + 0.5 + 0.5), abs=1e-4)
    assert simulation.clock.ledger.wasted.tolist() == [0.0] * 5


@pytest.mark.parametrize("rule", ["mifa", "afa-cs", "ace"])
def test_a_late_reply_enters_the_memory_with_the_model_of_its_round(rule: str) -> None:
    simulation = timed(
        **{**SERVERS["deadline"], "devices": "two-classes", "deadline": 1.0, "p_min": 1.0, "rule": rule, "rounds": 4},
        device_options={"slow_share": 0.2, "slowdown": 3.0, "steps_per_second": 10.0, "down": 1e9, "up": 1e9},
    )
    slow = int(np.argmin(simulation.devices.speeds(0, 5, 0).steps))
    begun_with = simulation.model.copy()
    simulation.run()
    expected = simulation.trainer.updates(begun_with, np.array([slow]), 0)
    memory = simulation.state.memory
    steps = 5 if rule == "afa-cs" else 1  # rows per local step
    assert np.array_equal(memory.rows([slow]), np.asarray(expected / steps, dtype=np.float32))
    if rule == "ace":  # asked in round 0, answered in round 2; the others answered in round 3
        assert simulation.state.of_rule.arrays()["version"].tolist() == [0 if i == slow else 3 for i in range(5)]


@servers
@pytest.mark.parametrize("rule", ["fedavg", "fedstale"])
def test_a_run_that_is_cut_anywhere_goes_on_with_the_same_bits(
    server: dict[str, Any], rule: str, tmp_path: Path
) -> None:
    whole = timed(**server, rule=rule)
    whole.run()
    if rule == "fedstale" and "wait for" not in str(server):
        assert len(whole.records) == 30
    cut = timed(**server, rule=rule)
    records: list[Record] = []
    for until in (1, 2, 7, 8, 19, 30):
        cut.run(until=until)
        records += list(cut.records)
        cut.save(tmp_path / "checkpoint")
        cut.state.close()
        settings = make_settings(**{**SMALL, **TIMED, **server, "rule": rule})
        cut = build(settings, folder=tmp_path, resume=True)  # type: ignore[assignment]
    assert np.array_equal(whole.model, cut.model)
    assert everything(whole.state) == everything(cut.state)
    for one, other in zip(whole.records, records, strict=True):
        assert one.participants.tolist() == other.participants.tolist()
        mine, theirs = ({k: v for k, v in r.metrics.items() if k != "seconds"} for r in (one, other))
        np.testing.assert_equal(mine, theirs)
    for name, array in whole.clock.arrays().items():
        assert np.array_equal(array, cut.clock.arrays()[name]), name


@servers
def test_a_run_killed_in_the_middle_of_pending_work_is_resumed_from_the_store(
    server: dict[str, Any], tmp_path: Path
) -> None:
    class PullThePlug(Callback):
        def on_round(self, simulation: Simulation, record: Record) -> None:
            if record.round == 17:
                raise RuntimeError("the power is gone")

    wanted = {**SMALL, **TIMED, **server, "rule": "fedstale"}
    expected = simulate(**wanted)
    with Store.open(tmp_path / "store") as store:
        with pytest.raises(RuntimeError, match="the power"):
            simulate(**wanted, store=store, callbacks=[PullThePlug()])
        (info,) = store.runs()
        again = fs.resume(info.id, store=store)
        assert np.array_equal(expected.model, again.model)
        for name in ("virtual_seconds", "excess_loss", "late", "lost", "wasted_seconds", "information_age"):
            np.testing.assert_array_equal(expected.metrics[name], again.metrics[name])
        assert "idle_seconds" in store.run(info.id).client_metric_names()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**30), st.sampled_from(sorted(SERVERS)), st.integers(1, 29))
def test_any_cut_of_any_run(seed: int, name: str, cut: int) -> None:
    """As above, over seeds and cuts, through a state that is saved and loaded."""
    import tempfile

    whole = timed(**SERVERS[name], rule="tempered", seed=seed)
    whole.run()
    first = timed(**SERVERS[name], rule="tempered", seed=seed)
    first.run(until=cut)
    with tempfile.TemporaryDirectory() as folder:
        first.save(Path(folder, "checkpoint"))
        first.state.close()
        made = make_settings(**{**SMALL, **TIMED, **SERVERS[name], "rule": "tempered", "seed": seed})
        second = build(made, folder=Path(folder), resume=True)
        second.run()
        assert np.array_equal(whole.model, second.model)
        second.state.close()


class AnyOrder(EventQueue):
    """A queue into which what happens at the same time is put in any order, again and again."""

    def __init__(self, events: list[Event] | None = None) -> None:
        super().__init__(events)
        self._random = Random(17)

    def pop(self) -> Event:
        self._heap = self._random.sample(self._heap, len(self._heap))
        heapify(self._heap)
        return super().pop()


@servers
@pytest.mark.parametrize("rule", ["tempered", "fedasync"])
def test_any_interleaving_of_equal_times_gives_the_same_bits(
    server: dict[str, Any], rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All devices are alike, so that nearly everything happens at the same time as something else."""
    alike = {**server, "rule": rule, "devices": "equal", "device_options": {}}
    whole = timed(**alike)
    whole.run()
    monkeypatch.setattr("fedstale.clock.clock.EventQueue", AnyOrder)
    other = timed(**alike)
    other.run()
    assert np.array_equal(whole.model, other.model)
    assert everything(whole.state) == everything(other.state)
    for name, array in whole.clock.arrays().items():
        assert np.array_equal(array, other.clock.arrays()[name]), name


@servers
def test_the_time_adds_up(server: dict[str, Any]) -> None:
    simulation = timed(**server, rule="mifa")
    ended: list[tuple[int, float, float, str]] = []
    simulation.clock.ledger.watch = lambda work, end, what: ended.append((work.device, work.start, end, what.value))
    simulation.run()
    metrics = simulation.records.metrics
    times = metrics["virtual_seconds"]
    assert (np.diff(times) >= 0).all()
    assert times[-1] == simulation.clock.now > 0
    ledger = simulation.clock.ledger
    busy = np.zeros(5)
    last = np.zeros(5)
    for device, start, end, _ in sorted(ended, key=lambda one: one[1]):
        assert start >= last[device]  # one thing at a time
        last[device] = end
        busy[device] += end - start
    assert ledger.busy == pytest.approx(busy)
    in_vain = [end - start for _, start, end, what in ended if what in ("lost", "discarded")]
    assert metrics["wasted_seconds"].sum() == pytest.approx(sum(in_vain), abs=1e-9)
    assert (simulation.clock.idle >= 0).all()
    used = sum(what == "used" for *_, what in ended)
    assert metrics["participants"].sum() == used
    remembered = sum(what == "late" for *_, what in ended)
    assert remembered - 5 <= metrics["late"].sum() <= remembered  # the last may wait for a round that does not come
    vector = 10 * 8
    assert metrics["bytes_up"].sum() == (used + remembered) * vector
    assert metrics["bytes_down"].sum() == (len(ended) + len(simulation.clock.work)) * vector
    if server["server"] != "synchronous":
        assert metrics["age_max"].max() > 0
    assert metrics["lost"].sum() == sum(what == "lost" for *_, what in ended)


def test_a_buffered_server_against_a_few_lines() -> None:
    """FedAvg over a buffer of two: which replies, from which models, in which order."""
    simulation = timed(server="buffered", server_options={"size": 2}, rule="fedavg", p_min=1.0, rounds=25)
    speeds = simulation.devices.speeds(0, 5, 0)
    vector = 10 * 8
    seconds = vector / speeds.down + 5 / speeds.steps + vector / speeds.up
    trainer, model = simulation.trainer, simulation.model.copy()
    due = {i: (float(seconds[i]), trainer.updates(model, np.array([i]), 0)[0], 0) for i in range(5)}
    for t in range(25):
        first = sorted(due, key=lambda i: (due[i][0], i))[:2]
        now = due[first[1]][0]
        model = model - np.mean([due[i][1] for i in first], axis=0)
        record = simulation.step()
        assert record.participants.tolist() == first
        assert record.metrics["virtual_seconds"] == now
        assert record.metrics["age_max"] == max(t - due[i][2] for i in first)
        assert simulation.model == pytest.approx(model, rel=1e-12, abs=1e-14)
        for i in first:
            due[i] = (now + float(seconds[i]), trainer.updates(model, np.array([i]), t + 1)[0], t + 1)


def test_a_run_ends_when_its_time_is_over_and_is_evaluated_then() -> None:
    run = simulate(**{**SMALL, "rounds": 1000}, **TIMED, server="asynchronous", until_seconds=20.0, evaluate_every=400)
    assert run.reason == "stopped"
    assert run.metrics["virtual_seconds"][-1] >= 20.0 > run.metrics["virtual_seconds"][-2]
    assert np.isfinite(run.metrics["excess_loss"][-1])


def test_no_more_work_than_the_concurrency() -> None:
    few = {"size": 2, "concurrency": 3}
    simulation = timed(server="buffered", server_options=few, num_clients=8, p_min=1.0, rounds=60)
    asked: set[int] = set()
    for _ in range(60):
        record = simulation.step()
        assert len(simulation.clock.work) <= 3
        asked |= set(simulation.clock.work) | set(record.participants.tolist())
    assert asked == set(range(8))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"deadline": 3.0}, "deadline = 3.0: needs a server that knows time"),
        ({"server": "sometimes"}, "unknown server 'sometimes'"),
        ({"server": "buffered", "server_options": {"size": 9}}, "size = 9: a buffer must not be larger"),
        ({"server": "buffered", "server_options": {"late": "discard"}}, "unknown option of server 'buffered': 'late'"),
        ({"server": "buffered", "rule": "svrg"}, "needs updates that were computed from the server's present model"),
        ({"server": "asynchronous", "probabilities": "known"}, "is not known: use an estimator"),
        ({"server": "asynchronous", "selection": "uniform", "selection_options": {"m": 2}}, "asks by its concurrency"),
        ({"server": "synchronous", "server_options": {"over_select": 0.3}}, "needs wait_for"),
        ({"server": "synchronous", "server_options": {"late": "never"}}, 'must be "remember" or "discard"'),
        ({"server": "synchronous", "server_options": {"deadline": 3}}, "deadline is a setting of its own"),
        ({"server": "synchronous", "devices": "slow"}, "unknown devices 'slow'"),
        ({"server": "synchronous", "deadline": -1}, "deadline = -1"),
    ],
)
def test_nonsense_is_refused_in_one_line(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(fs.InvalidInput) as caught:
        build(make_settings(**{**SMALL, **changes}))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_objects_are_written_as_settings() -> None:
    made = make_settings(**SMALL, server=Synchronous(deadline=2.0, wait_for=3), devices=LogNormal(spread=0.25))
    assert (made.server, made.deadline, made.server_options) == ("synchronous", 2.0, {"wait_for": 3})
    assert (made.devices, made.device_options) == ("log-normal", {"spread": 0.25})
    assert made.probabilities == "fedau-nocutoff"
    simulation = build(made)
    assert isinstance(simulation, TimedSimulation)
    assert simulation.server == Synchronous(deadline=2.0, wait_for=3)
    assert make_settings(**SMALL, server="synchronous", devices=Equal()).device_options == {}


def test_a_checkpoint_of_rounds_has_no_clock(tmp_path: Path) -> None:
    rounds = build(make_settings(**SMALL))
    rounds.run(until=3)
    rounds.save(tmp_path / "checkpoint")
    with pytest.raises(fs.InvalidInput, match="a run without a clock"):
        build(make_settings(**SMALL, server="synchronous"), folder=tmp_path, resume=True)
    assert isinstance(State.load(tmp_path / "checkpoint"), State)
