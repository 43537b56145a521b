import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedstale.checks import InvalidInput, UnknownName
from fedstale.durable import FileInUse
from fedstale.store import Store, StoreError, digest


def config(seed: int, beta: Any = 0.5, p_min: float = 0.1) -> dict[str, Any]:
    return {
        "task": "digits",
        "rule": {"name": "fedstale", "beta": beta},
        "participation": {"p_min": p_min},
        "seed": seed,
    }


def plans(store: Store, work: Any) -> list[str]:
    """How SQLite carries out each SELECT that the work makes."""
    statements: list[str] = []
    connection = store.database._usable_connection()
    connection.set_trace_callback(statements.append)
    work()
    connection.set_trace_callback(None)
    chosen = [text for text in statements if text.startswith("SELECT")]
    assert chosen
    return [row[3] for text in chosen for row in connection.execute(f"EXPLAIN QUERY PLAN {text}")]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store.open(tmp_path_factory.mktemp("large"))
    for start in range(0, 300, 100):
        runs = [
            store.start(config(k, ["auto", 0, 0.5][k % 3], [0.1, 0.2][k % 2]), name=f"run {k}", sweep=f"s{k % 10}")
            for k in range(start, start + 100)
        ]
        for run in runs:
            for round in range(100):
                run.record(round, {"loss": 1.0 / (round + 1), "accuracy": round / 100}, participants=[round % 24])
        for run in runs:
            run.finish()
    return store


def test_a_large_store_is_listed_without_looking_at_its_metrics(large: Store) -> None:
    assert len(large.runs()) == 300
    assert all(info.summary == {"loss": 0.01, "accuracy": 0.99} for info in large.runs())
    assert not any("block" in step for step in plans(large, large.runs))


@pytest.mark.parametrize(
    ("wanted", "count", "index"),
    [
        ({"sweep": "s3"}, 30, "INDEX run_sweep"),
        ({"status": "finished"}, 300, "INDEX run_status"),
        ({"status": "interrupted"}, 0, "INDEX run_status"),
        ({"name": "run 7"}, 1, "INDEX run_name"),
        ({"where": {"rule.beta": "auto"}}, 100, "SEARCH setting USING PRIMARY KEY"),
        ({"where": {"beta": 0.5, "p_min": 0.2}}, 50, "SEARCH setting USING PRIMARY KEY"),
        ({"where": {"seed": 299}, "sweep": "s9"}, 1, "INDEX run_sweep"),
    ],
)
def test_every_filter_has_its_index(large: Store, wanted: dict[str, Any], count: int, index: str) -> None:
    found = large.runs(**wanted)
    assert len(found) == count
    steps = plans(large, lambda: large.runs(**wanted))
    assert any(index in step for step in steps), steps
    assert not any(step.startswith(("SCAN run", "SCAN block")) for step in steps), steps


def test_metrics_and_lookups_use_indices(large: Store) -> None:
    run = large.run("run 5")
    for work in (
        run.metrics,
        lambda: run.metrics(["loss"]),
        run.participants,
        run.metric_names,
        lambda: large.run(run.id),
        lambda: large.find(config(5)),
    ):
        steps = plans(large, work)
        assert not any(step.startswith("SCAN") for step in steps), steps


def test_newest_first_and_limit(large: Store) -> None:
    assert [info.name for info in large.runs(limit=3)] == ["run 299", "run 298", "run 297"]
    assert [info.name for info in large.runs(limit=1, status="finished", sweep="s4")] == ["run 294"]
    assert large.runs(limit=0) == []
    with pytest.raises(InvalidInput, match="limit = -1"):
        large.runs(limit=-1)


def test_filters_tell_numbers_from_text_and_know_missing_values(store: Store) -> None:
    values: list[Any] = [1, "1", True, None, "null", 0.5, [1, 2], 2**70]
    for value in values:
        store.start({"x": value}).finish()
    for value in values:
        assert [info.config["x"] for info in store.runs(where={"x": value})] == [value]
    assert [info.config["x"] for info in store.runs(where={"x": np.float64(1.0)})] == [1]


def test_an_unknown_key_or_status_is_named(store: Store) -> None:
    assert store.runs(where={"anything": 1}) == []  # an empty store has no keys yet
    store.start(config(0)).finish()
    store.start({"local": {"rate": 1}, "server": {"rate": 1}}).finish()
    with pytest.raises(UnknownName, match=r"unknown config key 'rule.betta': did you mean rule.beta"):
        store.runs(where={"rule.betta": 1})
    with pytest.raises(UnknownName, match=r"local.rate or server.rate|server.rate or local.rate"):
        store.runs(where={"rate": 1})
    with pytest.raises(UnknownName, match="did you mean finished"):
        store.runs(status="finish")


def test_a_run_is_found_by_id_beginning_end_and_name(store: Store) -> None:
    first, second = store.start({}, name="alpha"), store.start({}, name="beta")
    assert store.run(first.id).id == first.id
    assert store.run(second.id[-4:]).id == second.id
    assert store.run("alpha").id == first.id
    prefix = next(first.id[:k] for k in range(len(first.id)) if not second.id.startswith(first.id[:k]))
    assert store.run(prefix).id == first.id
    with pytest.raises(StoreError, match=f"matches 2 runs: {second.id}, {first.id}"):
        store.run("2")
    with pytest.raises(UnknownName, match=r"did you mean \S+ \(alpha\)"):
        store.run("alpa")
    with pytest.raises(UnknownName, match=r"the newest are \S+ \(beta\), \S+ \(alpha\)"):
        store.run("???????")
    with pytest.raises(InvalidInput, match="run = ''"):
        store.run("")


def test_an_empty_store_says_so(store: Store) -> None:
    with pytest.raises(UnknownName, match="the store is empty"):
        store.run("x")


def test_find_only_finished_runs_with_exactly_this_config(store: Store) -> None:
    run = store.start(config(1, beta=1))
    assert store.find(config(1, beta=1)) is None
    assert (found := store.find(config(1, beta=1), status="running")) is not None
    assert found.id == run.id
    run.finish("failed")
    assert store.find(config(1, beta=1)) is None
    assert store.find(config(1, beta=1), status=None) is not None
    again = store.start(config(1, beta=1))
    again.finish()
    for same in (config(1, beta=1.0), config(np.int64(1), beta=1), dict(reversed(config(1, beta=1).items()))):  # type: ignore[arg-type]
        assert (found := store.find(same)) is not None
        assert found.id == again.id
    for other in (config(2, beta=1), config(1, beta="1"), config(1, beta=True), config(1, beta=1) | {"extra": None}):
        assert store.find(other) is None


def test_a_float_beyond_the_exact_integers_is_not_the_integer_it_shows() -> None:
    """From 2⁵³ on a float stands for more than one integer: two configs must not pass for the same run."""
    assert digest({"x": float(2**53 - 1)}) == digest({"x": 2**53 - 1})
    assert digest({"x": 1.0 - 2**53}) == digest({"x": 1 - 2**53})
    for whole in (2**53, -(2**53), 2**53 + 1, 10**22):
        assert digest({"x": float(whole)}) != digest({"x": int(float(whole))})


def test_the_hash_is_that_of_canonical_json() -> None:
    import hashlib

    text = '{"a":[1,2.5,null],"b":{"c":"é","d":true}}'
    canonical = json.dumps(json.loads(text), separators=(",", ":")).encode()
    assert digest({"b": {"d": True, "c": "é"}, "a": (1.0, 2.5, None)}) == hashlib.sha256(canonical).hexdigest()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"a": float("nan")}, "config.a = nan"),
        ({"a": {"b": [0, float("inf")]}}, r"config.a.b\[1\] = inf"),
        ({"a": object()}, "config.a"),
        ({1: 2}, "config key = 1"),
        ([1], r"config = \[1\]"),
    ],
)
def test_a_config_that_json_does_not_know_is_refused(store: Store, wrong: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        store.start(wrong)
    assert store.runs() == []


def test_delete_removes_rows_files_and_space(store: Store) -> None:
    kept = store.start(config(1))
    kept.record(0, {"loss": 1.0})
    kept.finish()
    run = store.start(config(2), name="gone")
    for round in range(300):
        run.record(round, {"loss": 1.0}, clients={"noise": np.random.default_rng(round).normal(size=500)})
    run.checkpoint.mkdir()
    (run.checkpoint / "state.safetensors").write_bytes(b"x")
    with pytest.raises(FileInUse, match=f"run {run.id} is already being written by this process"):
        store.delete(run.id)
    run.finish()
    pages = store.database.read("PRAGMA page_count", "i")[0][0]
    store.delete("gone")
    assert [info.id for info in store.runs()] == [kept.id]
    assert not run.folder.exists()
    assert store.run(kept.id).metrics()["loss"].tolist() == [1.0]
    assert store.runs(where={"seed": 2}) == []
    assert store.database.read("SELECT count(*) FROM setting", "i")[0][0] == 5
    assert store.database.read("PRAGMA page_count", "i")[0][0] < pages / 2
    with pytest.raises(StoreError, match="was deleted"):
        run.info()


def test_a_store_is_listed_without_its_run_folders(tmp_path: Path) -> None:
    import shutil

    with Store.open(tmp_path) as store:
        store.start({}, name="a")
    shutil.rmtree(tmp_path / "runs")
    with Store.open(tmp_path) as store:
        assert store.runs()[0].status == "interrupted"
        store.resume("a").finish()
        assert store.runs()[0].status == "finished"
