"""Same seed, same bits; engines agree; any number of processes draws the same participants and batches."""

from __future__ import annotations

import hashlib
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedstale as fs
from fedstale import training
from fedstale.simulation import build, make_settings
from fedstale.state import State

pytest.importorskip("torch")
DIGITS: dict[str, Any] = {"task": "digits-mlp", "p_min": 0.3, "swap": 0.4, "threads": 1, "beta": "auto"}


def model_after(rounds: int, **changes: Any) -> np.ndarray[Any, Any]:
    simulation = build(make_settings(**{**DIGITS, "rounds": rounds, "evaluate_every": rounds, **changes}))
    simulation.run()
    return np.array(simulation.model)


def test_loop_twice_gives_the_same_bits() -> None:
    assert np.array_equal(model_after(8, engine="loop"), model_after(8, engine="loop"))
    assert not np.array_equal(model_after(8, engine="loop"), model_after(8, engine="loop", seed=1))


def test_loop_and_vmap_agree_after_twenty_rounds() -> None:
    loop, vmap = model_after(20, engine="loop"), model_after(20, engine="vmap")
    assert np.linalg.norm(loop - vmap) < 1e-5 * np.linalg.norm(loop)


def draws(rounds: range) -> list[str]:
    """Digest of who came and on what they trained, in some rounds."""
    simulation = build(make_settings(**DIGITS, engine="loop", rounds=40))
    engine: training.Engine = simulation.trainer.engine  # type: ignore[attr-defined]
    result = []
    for t in rounds:
        who = simulation.participation.participants(0, t)
        result.append(hashlib.sha256(who.tobytes() + engine.batches(who, t).rows.tobytes()).hexdigest())
    return result


@pytest.mark.slow
def test_one_or_two_processes_draw_the_same() -> None:
    """By default tests/faults/test_crashes.py tells it: what one process began, another ends with the same bits."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        others = pool.submit(draws, range(20, 40)).result()
    assert draws(range(20)) + others == draws(range(40))


@pytest.mark.slow
def test_the_rare_group_is_served_by_unbiased_rules() -> None:
    """Bias made visible: p_min = .05, swap 1.0; measured gaps are 7 to 11 points over two seeds."""
    rare = {}
    for rule in ("fedavg", "u-fedavg", "fedstale"):
        run = fs.simulate("digits", rule, p_min=0.05, swap=1.0, threads=1, engine="vmap", seed=0)
        rare[rule] = run.tail("accuracy_group1")
    assert rare["u-fedavg"] > rare["fedavg"] + 0.04
    assert rare["fedstale"] > rare["fedavg"] + 0.04


def test_the_engine_that_was_chosen_is_remembered(tmp_path: Path) -> None:
    simulation = build(make_settings(**{**DIGITS, "rounds": 2, "rule": "fedavg", "beta": None, "engine": "fastest"}))
    simulation.run()
    assert simulation.state.notes["engine"] in ("loop", "vmap")
    simulation.state.save(tmp_path)
    assert State.load(tmp_path).notes == simulation.state.notes
    # A note is nothing that the rule remembers: FedAvg's server keeps when each client was last seen, 8 bytes each.
    assert simulation.column("server_bytes")[-1] == 8 * simulation.federation.num_clients


def test_per_client_accuracy_on_request() -> None:
    run = fs.simulate("digits", "fedavg", p_min=0.5, rounds=6, evaluate_every=3, per_client=True, threads=1)
    assert run.per_client is not None
    rounds, table = run.per_client
    assert rounds.tolist() == [2, 5]
    assert table.shape == (2, 24)
    assert np.nanmin(table) >= 0
