"""Ctrl-C waits for what must be whole; what it cuts short anyway is never saved."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedstale as fs
from fedstale import sweeps
from fedstale.cli.app import app
from fedstale.interrupts import postponed
from fedstale.participation.estimators import FedAUEstimator
from fedstale.rules import Rule
from fedstale.simulation import Callback, Simulation, StoreRun, build, make_settings
from fedstale.simulation.run import simulate
from fedstale.store import Store
from fedstale.store.blocks import Block
from tests.combinations import combinations

SMALL: dict[str, Any] = {"task": "quadratic", "num_clients": 4, "p_min": 0.3, "lr": 0.02, "probabilities": "fedau"}
ROUNDS = 30


@pytest.fixture(autouse=True)
def usual_handlers() -> Iterator[None]:
    """A shell lets its background jobs ignore Ctrl-C, and tests may be one."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler  # restored by whoever changed it
    for number, handler in before.items():
        signal.signal(number, handler)


def at_call(owner: Any, name: str, call: int, act: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Do something right after a method's so-and-so-many-th call."""
    real, calls = getattr(owner, name), iter(range(1, 10**9))

    def method(*args: Any, **kwargs: Any) -> Any:
        result = real(*args, **kwargs)
        if next(calls) == call:
            act()
        return result

    monkeypatch.setattr(owner, name, method)


def ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def cut() -> None:
    """What a handler of the user's does, or another thread."""
    raise KeyboardInterrupt


def steps(*between: Callable[[], None], open_: bool = False, again: bool = False) -> list[int]:
    """Do things in a postponed block (open, or in one within it) and return the places of those that were reached."""
    done: list[int] = []
    with contextlib.suppress(KeyboardInterrupt), postponed("test") as interrupt:
        with contextlib.ExitStack() as stack:
            if open_:
                stack.enter_context(interrupt.heard())
            for place, act in enumerate(between):
                with postponed("inner") if again else contextlib.nullcontext():
                    act()
                    done.append(place)
        done.append(-1)
        return done
    return [*done, -2]  # the interrupt was heard


def nothing() -> None:
    pass


def twice() -> None:
    """What `timeout` does: one signal to the process, one to its group."""
    threading.Timer(0.05, ctrl_c_from_outside).start()
    ctrl_c()


def ctrl_c_from_outside() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def terminated() -> None:
    signal.raise_signal(signal.SIGTERM)


def swallowed() -> None:
    """Some libraries catch everything while they are being imported."""
    with contextlib.suppress(BaseException):
        ctrl_c()


def test_a_signal_waits_for_the_end_of_the_block() -> None:
    assert steps(nothing) == [0, -1]
    for act in (ctrl_c, terminated, twice):
        assert steps(nothing, act, nothing) == [0, 1, 2, -1, -2]
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_where_it_may_be_cut_it_is() -> None:
    assert steps(nothing, ctrl_c, nothing, open_=True) == [0, -2]
    assert steps(nothing, swallowed, nothing, open_=True) == [0, 1, 2, -1, -2]


def test_within_another_block() -> None:
    assert steps(nothing, ctrl_c, nothing, again=True) == [0, 1, 2, -1, -2]
    assert steps(nothing, ctrl_c, nothing, open_=True, again=True) == [0, 1, -2]


def test_handlers_of_others_and_other_threads_are_left_alone() -> None:
    heard: list[int] = []

    def mine(number: int, frame: object) -> None:
        heard.append(number)

    signal.signal(signal.SIGTERM, mine)
    with postponed("test") as interrupt:
        assert signal.getsignal(signal.SIGTERM) is mine
        signal.raise_signal(signal.SIGTERM)
        assert heard == [signal.SIGTERM]
        assert not interrupt.asked

    def elsewhere() -> None:
        with postponed("test"):
            heard.append(signal.getsignal(signal.SIGINT) is signal.default_int_handler)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert heard == [signal.SIGTERM, True]


def test_a_second_ctrl_c_ends_at_once() -> None:
    program = (
        "import signal, time\nfrom fedstale.interrupts import postponed\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "with postponed('test'):\n"
        "    signal.raise_signal(signal.SIGINT); print('first', flush=True)\n"
        "    signal.raise_signal(signal.SIGINT); print('second', flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGINT
    assert done.stdout.split() == ["first"]
    assert done.stderr == ""


PLACES = [(Rule, "combine"), (FedAUEstimator, "observe"), (fs.State, "save"), (Store, "flush"), (Block, "add")]


def place_or_memory(value: tuple[Any, str] | str) -> str:
    return value if isinstance(value, str) else value[1]


@pytest.mark.parametrize("act", [ctrl_c, cut])
@pytest.mark.parametrize(("place", "memory"), combinations(PLACES, ["disk", "ram"]), ids=place_or_memory)
def test_what_is_saved_is_a_whole_round(
    place: tuple[Any, str], act: Callable[[], None], memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name = place
    chosen = {**SMALL, "rounds": ROUNDS, "memory": memory}
    truth = simulate(**chosen, store=tmp_path / "whole")
    call = 2 if name in ("save", "flush") else 17 * (12 if name == "add" else 1)
    with monkeypatch.context() as patch:
        at_call(owner, name, call, act, patch)
        with pytest.raises(KeyboardInterrupt), Store.open(tmp_path / "cut") as store:
            simulate(**chosen, store=store)
    with Store.open(tmp_path / "cut") as store:
        (info,) = store.runs()
        assert info.status == "interrupted"
        store.run(info.id).metrics()  # readable
        run = store.resume(info.id)
        rest = build(make_settings(**chosen), callbacks=[StoreRun(run)], folder=run.folder, resume=True)
        if act is ctrl_c:  # nothing is redone
            assert rest.state.round == info.rounds_done
        assert 0 < rest.state.round <= info.rounds_done < ROUNDS
        run.truncate(rest.state.round - 1)
        rest.run()
        rest.state.close()
        assert np.array_equal(rest.model, truth.model)
        found = store.run(info.id).metrics()
        for metric, values in truth.metrics.items():
            assert metric == "seconds" or np.array_equal(found[metric], values, equal_nan=True), metric
        assert [who.tolist() for who in store.run(info.id).participants().values()] == [
            who.tolist() for who in truth.participants
        ]


def test_a_round_that_was_cut_short_is_not_gone_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = build(make_settings(**SMALL, rounds=9))
    with monkeypatch.context() as patch:
        at_call(Rule, "combine", 4, cut, patch)
        with pytest.raises(KeyboardInterrupt):
            simulation.run()
    with pytest.raises(RuntimeError, match="was interrupted"):
        simulation.run()


def test_after_ctrl_c_in_a_notebook_the_same_object_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    truth = simulate(**SMALL, rounds=9)
    simulation = build(make_settings(**SMALL, rounds=9))
    with monkeypatch.context() as patch:
        at_call(Rule, "combine", 4, ctrl_c, patch)
        with pytest.raises(KeyboardInterrupt):
            simulation.run()
    assert simulation.state.round == 4
    assert simulation.run() == "finished"
    assert np.array_equal(simulation.model, truth.model)


def test_ctrl_c_in_the_last_round_finishes_the_run_and_then_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_call(Rule, "combine", 5, ctrl_c, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        simulate(**SMALL, rounds=5, store=tmp_path)
    with Store.open(tmp_path) as store:
        assert [(info.status, info.rounds_done) for info in store.runs()] == [("finished", 5)]


def test_a_callback_before_the_store_that_is_cut_short(tmp_path: Path) -> None:
    class Cut(Callback):
        def on_round(self, simulation: Simulation, record: Any) -> None:
            if record.round == 14:
                raise KeyboardInterrupt

    chosen = make_settings(**SMALL, rounds=ROUNDS)
    with Store.open(tmp_path) as store:
        run = store.start(chosen.record())
        with pytest.raises(KeyboardInterrupt):
            build(chosen, callbacks=[Cut(), StoreRun(run)], folder=run.folder).run()
        assert store.run(run.id).info().rounds_done == 14
        assert fs.State.load(run.checkpoint).round == 10  # not 15, of which the store knows nothing


@pytest.mark.parametrize("how", ["command", "call"])
def test_interrupted_before_the_first_round_there_is_no_run(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["fedstale.simulation.build"]
    at_call(module, "make_task", 1, ctrl_c, monkeypatch)
    if how == "command":
        with pytest.raises(SystemExit) as ended:
            app(["run", "quadratic", "--num-clients", "3", "--rounds", "4", "--store", str(tmp_path)])
        assert ended.value.code == 130
    else:
        with pytest.raises(KeyboardInterrupt):
            simulate(**SMALL, rounds=5, store=tmp_path)
    with Store.open(tmp_path) as store:
        assert store.runs() == []
    assert list((tmp_path / "runs").glob("*")) == []


@pytest.mark.parametrize("act", [ctrl_c, cut])
def test_a_batch_of_a_sweep_is_stored_whole(
    act: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    common = {"rounds": 4, "evaluate_every": 2, "p_min": 0.5}
    runs = sweeps.Grid("small", common, {"beta": [0.0, 1.0], "lr": [0.1, 0.3]}).runs()
    with monkeypatch.context() as patch:
        at_call(Store, "start", 2, act, patch)
        with pytest.raises(KeyboardInterrupt), Store.open(tmp_path / "cut") as store:
            sweeps.sweep(runs, store, name="small")
    with Store.open(tmp_path / "cut") as store, Store.open(tmp_path / "whole") as other:
        done = len(store.runs(status="finished"))
        assert done == (4 if act is ctrl_c else 1)
        assert sweeps.sweep(runs, store, name="small").complete
        assert [info.status for info in store.runs()] == ["finished"] * 4
        sweeps.sweep(runs, other, name="small")
        assert sweeps.results(store, runs) == sweeps.results(other, runs)


def test_ctrl_c_while_the_command_is_loaded(tmp_path: Path) -> None:
    """An import that is interrupted: exit code 130 and not a word."""
    program = (
        "import signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "class Late:\n"
        "    def find_spec(name, path=None, target=None):\n"
        "        if name == 'typer':\n"
        "            signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Late)\n"
        "from fedstale.cli import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=os.environ)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
