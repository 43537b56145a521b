import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedstale.checks import InvalidInput, UnknownName
from fedstale.store import Run, Store, StoreError
from fedstale.store import run as run_module

CONFIG: dict[str, Any] = {"task": "digits", "rule": {"name": "fedstale", "beta": "auto"}, "seed": 3, "lr": 1e-2}


def fill(run: Run, rounds: range) -> None:
    """Accuracy every third round, loss in each, clients as the round says."""
    for round in rounds:
        metrics = {"loss": 1.0 / (round + 1)} | ({"accuracy": round / 1000} if round % 3 == 2 else {})
        run.record(round, metrics, participants=range(round % 4), clients={"gap": np.arange(4.0) + round})


def check(run: Run, rounds: int) -> None:
    columns = run.metrics()
    at = np.arange(rounds)
    assert columns["round"].tolist() == at.tolist()
    np.testing.assert_array_equal(columns["loss"], 1.0 / (at + 1))
    np.testing.assert_array_equal(columns["accuracy"], np.where(at % 3 == 2, at / 1000, np.nan))
    assert {t: ids.tolist() for t, ids in run.participants().items()} == {t: list(range(t % 4)) for t in at}
    seen, gaps = run.client_metrics("gap")
    assert seen.tolist() == at.tolist()
    np.testing.assert_array_equal(gaps, at[:, None] + np.arange(4.0))


def test_everything_comes_back_after_reopening(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store, store.start(CONFIG, name="first", sweep="s", rounds_total=700) as run:
        fill(run, range(700))
    with Store.open(tmp_path, read_only=True) as store:
        (info,) = store.runs()
        assert (info.id, info.name, info.sweep, info.status) == (run.id, "first", "s", "finished")
        assert info.config == CONFIG
        assert (info.rounds_done, info.rounds_total) == (700, 700)
        assert info.summary == {"loss": 1.0 / 700, "accuracy": 0.698}
        check(store.run(run.id), 700)


def test_the_writer_reads_what_it_has_not_flushed(store: Store) -> None:
    run = store.start(CONFIG)
    fill(run, range(300))
    check(run, 300)


def test_only_the_wanted_metrics(store: Store) -> None:
    run = store.start(CONFIG)
    fill(run, range(5))
    assert list(run.metrics(["loss"])) == ["round", "loss"]
    assert run.metric_names() == ["accuracy", "loss"]
    assert run.client_metric_names() == ["gap"]
    with pytest.raises(UnknownName, match="did you mean accuracy"):
        run.metrics(["acuracy"])
    with pytest.raises(UnknownName, match="known: gap"):
        run.client_metrics("x")


def test_a_run_without_rounds_is_empty_and_not_an_error(store: Store) -> None:
    run = store.start({})
    assert run.metrics()["round"].shape == (0,)
    assert run.participants() == {}
    assert run.info().rounds_done == 0


def test_a_round_without_numbers_is_still_a_round(store: Store) -> None:
    run = store.start({})
    run.record(0, {"loss": 1.0})
    run.record(1, {}, participants=[])
    assert run.metrics()["round"].tolist() == [0, 1]
    assert run.participants()[1].tolist() == []


def test_infinity_and_nan_are_kept(store: Store, tmp_path: Path) -> None:
    with store.start({}) as run:
        run.record(0, {"loss": math.inf, "gap": np.float32(0.1)})
        run.record(1, {"loss": math.nan, "count": np.int64(7)})
    columns = store.run(run.id).metrics()
    assert columns["loss"][0] == math.inf
    assert math.isnan(columns["loss"][1])
    assert columns["gap"][0] == float(np.float32(0.1))
    assert math.isnan(store.runs()[0].summary["loss"])
    assert store.runs()[0].summary["count"] == 7


def test_clients_may_join(store: Store) -> None:
    run = store.start({})
    run.record(0, {}, clients={"loss": [1.0, 2.0]})
    run.record(5, {}, clients={"loss": [3.0, 4.0, 5.0]})
    rounds, matrix = run.client_metrics("loss")
    assert rounds.tolist() == [0, 5]
    np.testing.assert_array_equal(matrix, [[1.0, 2.0, np.nan], [3.0, 4.0, 5.0]])


def test_an_array_may_be_reused_by_the_caller(store: Store) -> None:
    run, values = store.start({}), np.zeros(3)
    run.record(0, {}, clients={"loss": values})
    values += 1
    assert run.client_metrics("loss")[1].tolist() == [[0.0, 0.0, 0.0]]


@pytest.mark.parametrize("kept", [-1, 0, 4, 255, 256, 300, 699, 1000])
def test_truncate_forgets_exactly_the_later_rounds(store: Store, kept: int) -> None:
    run = store.start(CONFIG)
    fill(run, range(300))
    run.flush()
    fill(run, range(300, 700))
    run.truncate(kept)
    rounds = min(kept + 1, 700)
    fill(run, range(rounds, 10)) if rounds < 10 else None
    check(run, max(rounds, 10))
    info = run.info()
    assert info.rounds_done == max(rounds, 10)
    assert info.summary["loss"] == 1.0 / max(rounds, 10)


def test_truncate_takes_back_the_summary(store: Store) -> None:
    run = store.start({})
    run.record(0, {"loss": 2.0})
    run.record(1, {"loss": 1.0, "late": 5.0})
    run.truncate(0)
    assert run.info().summary == {"loss": 2.0}
    assert run.metric_names() == ["loss"]


def test_resume_continues_the_same_run(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        run = store.start(CONFIG)
        fill(run, range(100))
    with Store.open(tmp_path) as store:
        assert store.runs()[0].status == "interrupted"
        with store.resume(run.id) as again:
            assert store.runs()[0].status == "running"
            again.truncate(79)
            fill(again, range(80, 120))
        check(again, 120)
        assert store.runs()[0].status == "finished"


def test_recording_commits_by_itself_now_and_then(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    run = store.start({})
    run.record(0, {"loss": 1.0})
    assert store.runs()[0].rounds_done == 0
    monkeypatch.setattr(run_module, "_INTERVAL", 0.0)
    run.record(1, {"loss": 1.0})
    assert store.runs()[0].rounds_done == 2


def test_one_flush_commits_every_run_of_the_store(store: Store) -> None:
    runs = [store.start({"seed": seed}) for seed in range(5)]
    for run in runs:
        run.record(0, {"loss": 1.0})
    runs[2].flush()
    assert [info.rounds_done for info in store.runs()] == [1] * 5


def test_the_context_tells_how_a_run_ended(store: Store) -> None:
    def fail() -> None:
        with store.start({}, name="failed"):
            raise RuntimeError("it broke")

    def interrupt() -> None:
        with store.start({}, name="interrupted") as run:
            run.record(0, {"loss": 1.0})
            raise KeyboardInterrupt

    with pytest.raises(RuntimeError):
        fail()
    with pytest.raises(KeyboardInterrupt):
        interrupt()
    last, first = store.runs()
    assert (first.status, first.message) == ("failed", "RuntimeError: it broke")
    assert (last.status, last.rounds_done) == ("interrupted", 1)


def test_a_finished_run_is_not_written_any_more(store: Store) -> None:
    run = store.start({})
    run.finish("failed", "no reason")
    assert store.run(run.id).info().message == "no reason"
    writes: list[Callable[[], None]] = [lambda: run.record(0, {}), run.flush, run.finish, lambda: run.truncate(0)]
    for write in writes:
        with pytest.raises(StoreError, match="reading only"):
            write()


def test_names_are_kept_untouched(store: Store) -> None:
    name = "<script>alert('x')</script> & \"Ψ\"; DROP TABLE run; --"
    with store.start({"note": name, name: 1}, name=name, sweep=name) as run:
        run.record(0, {name: 1.0}, clients={name: [1.0]})
    info = store.runs(name=name, sweep=name, where={name: 1, "note": name})[0]
    assert (info.name, info.sweep, info.config["note"]) == (name, name, name)
    assert store.run(name).metrics()[name].tolist() == [1.0]
    assert store.run(name).client_metrics(name)[1].tolist() == [[1.0]]


@pytest.mark.parametrize(
    "arguments", [{"name": ""}, {"name": "a\nb"}, {"sweep": "\x00"}, {"name": 3}, {"rounds_total": -1}]
)
def test_wrong_labels_are_refused(store: Store, arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(arguments))):
        store.start({}, **arguments)
    assert store.runs() == []
    assert not list((store.folder / "runs").glob("*"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"round": -1}, "round = -1"),
        ({"round": 1.5}, "round = 1.5"),
        ({"round": 4}, "round 4 is recorded already"),
        ({"metrics": {"loss": "1.0"}}, r"metrics\['loss'\] = '1.0': must be a number"),
        ({"metrics": {"loss": None}}, "must be a number"),
        ({"metrics": {"loss": 10**400}}, "must fit into a float"),
        ({"metrics": {"round": 1}}, "not run, name"),
        ({"metrics": {"a\nb": 1}}, "printable"),
        ({"participants": [1, 1]}, "only once"),
        ({"participants": [-1]}, "client indices"),
        ({"participants": [0.5]}, "client indices"),
        ({"clients": {"loss": [[1.0]]}}, "one-dimensional"),
        ({"clients": {"loss": ["x"]}}, "array of numbers"),
        ({"clients": {"": [1.0]}}, "printable"),
    ],
)
def test_a_wrong_record_is_refused_whole(store: Store, arguments: dict[str, Any], words: str) -> None:
    run = store.start({})
    run.record(4, {"loss": 1.0})
    whole: dict[str, Any] = {"round": 5, "metrics": {"other": 1.0}} | arguments
    with pytest.raises(InvalidInput, match=words):
        run.record(**whole)
    assert run.metrics()["round"].tolist() == [4]
    assert run.metric_names() == ["loss"]


def test_a_clock_that_goes_backwards_does_no_harm(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    first = store.start({"k": 1})
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 10_000)
    monkeypatch.setattr(time, "gmtime", lambda: time.struct_time((2001, 1, 1, 0, 0, 0, 0, 1, 0)))
    first.record(0, {"loss": 1.0})
    first.finish()
    store.start({"k": 2}).finish()
    newest, oldest = store.runs()
    assert [newest.config["k"], oldest.config["k"]] == [2, 1]
    assert oldest.updated >= oldest.created


def test_the_folder_comes_from_argument_environment_or_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDSTALE_STORE", raising=False)
    with Store.open() as store:
        assert store.folder == tmp_path / "fedstale-runs"
    monkeypatch.setenv("FEDSTALE_STORE", str(tmp_path / "other"))
    with Store.open() as store:
        assert store.folder == tmp_path / "other"
    with Store.open("odd #1?%20") as store:
        run = store.start({})
        assert run.checkpoint == tmp_path / "odd #1?%20" / "runs" / run.id / "checkpoint"
        assert (tmp_path / "odd #1?%20" / "store.sqlite").is_file()


def test_a_run_that_diverged_says_in_which_round(store: Store) -> None:
    run = store.start({"lr": 1e5}, rounds_total=20)
    run.record(0, {"accuracy": 0.1})
    with pytest.raises(InvalidInput, match="diverged_in = None"):
        run.finish("diverged")
    with pytest.raises(InvalidInput, match="diverged_in = 2"):
        run.finish("finished", diverged_in=2)
    run.finish("diverged", diverged_in=2)
    (info,) = store.runs(status="diverged")
    assert (info.status, info.diverged_in, info.reason, info.ended) == ("diverged", 2, "diverged in round 2", True)
    assert not store.runs(status="finished")
    again = store.resume(run.id)
    assert again.info().diverged_in is None
    again.finish()
    assert store.run(run.id).info().reason == "finished"
