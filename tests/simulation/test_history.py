"""Rounds kept in RAM as columns, or read back from the store: the same numbers, and no object per round."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedstale as fs
from fedstale.simulation import Callback, Record, Simulation, StoreRun, build, make_settings, simulate
from fedstale.simulation.history import RoundsInMemory, RoundsInStore
from fedstale.store import Store

SMALL: dict[str, Any] = {"task": "quadratic", "num_clients": 2, "p_min": 0.5, "lr": 0.003}


def records() -> list[Record]:
    nan = float("nan")
    return [
        Record(7, {"a": 1.0, "b": nan}, np.array([0, 3])),
        Record(8, {"a": 2.0}, np.array([], dtype=np.int64), np.array([0.5, nan])),
        Record(9, {"b": np.inf, "c": 0.1}, np.array([2])),
    ]


def test_a_history_is_its_records() -> None:
    history = RoundsInMemory()
    for record in records():
        history.add(record)
    assert len(history) == 3
    for kept, record in zip(history, records(), strict=True):
        assert kept.round == record.round
        assert kept.metrics.keys() == record.metrics.keys()  # NaN is a value, too
        assert np.array_equal([*kept.metrics.values()], [*record.metrics.values()], equal_nan=True)
        assert kept.participants.dtype == np.int64
        assert np.array_equal(kept.participants, record.participants)
        assert (kept.per_client is None) == (record.per_client is None)
    assert history[-1].round == 9
    with pytest.raises(IndexError):
        history[3]
    assert list(history.metrics) == ["a", "b", "c"]
    assert np.array_equal(history.column("b"), [np.nan, np.nan, np.inf], equal_nan=True)
    assert np.isnan(history.column("unknown")).all()
    assert [who.tolist() for who in history.participants[1:]] == [[], [2]]
    assert history.per_client is not None
    assert history.per_client[0].tolist() == [8]
    assert RoundsInMemory().per_client is None
    assert RoundsInMemory().metrics == {}


@pytest.mark.parametrize("opened", [True, False])
def test_a_stored_result_is_read_from_the_store(opened: bool, tmp_path: Path) -> None:
    options: Any = {**SMALL, "rounds": 25, "per_client": True, "evaluate_every": 4}
    truth = simulate(**options)
    if opened:
        with Store.open(tmp_path) as store:
            run = simulate(**options, store=store)
    else:
        run = simulate(**options, store=tmp_path)
    assert isinstance(run.rounds, RoundsInStore)
    assert run.metrics.keys() == truth.metrics.keys()
    for name in truth.metrics:
        assert name == "seconds" or np.array_equal(run.metrics[name], truth.metrics[name], equal_nan=True)
    assert [who.tolist() for who in run.participants] == [who.tolist() for who in truth.participants]
    assert (run.per_client is None) == (truth.per_client is None)
    assert run.tail("excess_loss") == truth.tail("excess_loss")


def test_rounds_that_the_store_lost_are_not_invented(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        run = store.start({})
        run.record(0, {"a": 1.0}, participants=[1])
        run.record(2, {"a": 3.0}, participants=[0])
        run.finish()
    found = RoundsInStore(tmp_path, run.id)
    assert np.array_equal(found.metrics["a"], [1.0, np.nan, 3.0], equal_nan=True)
    assert found.participants[2].tolist() == [0]
    with pytest.raises(fs.InvalidInput, match="round 1 are no longer in the store"):
        found.participants[1]


@pytest.mark.parametrize(("stored", "first", "last", "most"), [(False, 100, 200, 2), (True, 300, 812, 1)])
def test_what_a_round_leaves_in_ram(stored: bool, first: int, last: int, most: int, tmp_path: Path) -> None:
    """A run of any length fits: measured by the blocks that Python holds, between two rounds after the caches are warm.

    A record that is kept has seventeen. Where rounds are stored two blocks of the store lie between them: it keeps a
    part of one.
    """

    class Meter(Callback):
        def __init__(self) -> None:
            self.seen: list[int] = []

        def on_round(self, simulation: Simulation, record: Record) -> None:
            if record.round + 1 in (first, last):
                gc.collect()
                self.seen.append(sys.getallocatedblocks())

    chosen, meter = make_settings(**SMALL, rounds=last, evaluate_every=1, probabilities="fedau"), Meter()
    with Store.open(tmp_path) as store:
        if stored:
            run = store.start(chosen.record())
            mine = [StoreRun(run, 100), meter]
            build(chosen, callbacks=mine, folder=run.folder, keep_records=False).run()
        else:
            build(chosen, callbacks=[meter]).run()
    assert (meter.seen[1] - meter.seen[0]) / (last - first) < most
