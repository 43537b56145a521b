"""`fs.compare`: names and objects side by side, a table in every form, kept in a store, and what it says in words."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedstale as fs
from fedstale.checks import InvalidInput
from fedstale.federation import CheckedRound
from fedstale.simulation import Comparison, Method
from fedstale.simulation.methods import DEFAULT, EVERYBODY, file_methods, methods
from fedstale.store import Store

SMALL: dict[str, Any] = {"num_clients": 4, "lr": 0.02, "rounds": 12, "p_min": 0.5}


@dataclass(frozen=True)
class Half(fs.Rule):
    """A rule of one's own: half a step of FedAvg."""

    name = "half"

    def update(self, state: fs.State, round: CheckedRound) -> Any:
        return 0.5 * np.mean(list(round.updates), axis=0) if round.size else np.zeros(state.federation.num_params)


@pytest.fixture(scope="module")
def found() -> Comparison:
    return fs.compare("quadratic", ["fedavg", fs.FedStale(beta=0.5), Half(), "everybody"], seeds=2, **SMALL)


def test_names_and_objects(found: Comparison) -> None:
    labels = [record["method"] for record in found.records()]
    assert labels[:2] == ["FedAvg", "FedStale β=0.5"]
    assert labels[3] == "everybody, always"
    assert repr(found) == "<Comparison quadratic: 4 methods, 2 seeds, 12 rounds>"
    assert found["FedAvg"][0].final("excess_loss") > 0
    with pytest.raises(InvalidInput, match="unknown method 'FedAvgg': did you mean FedAvg"):
        found["FedAvgg"]


def test_same_participants_for_every_method(found: Comparison) -> None:
    first, second = (found[label][1].participants for label in ("FedAvg", "FedStale β=0.5"))
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    assert all(len(who) == 4 for who in found["everybody, always"][0].participants)


def test_an_own_task_and_names_of_ones_own(tmp_path: Path) -> None:
    task = fs.tasks.Quadratic.random(5, 3, seed=2)
    named: dict[str, Any] = {"mine": Half(), "theirs": "fedstale:0.5"}
    found = fs.compare(task, named, lr=0.02, rounds=4, p_min=0.5, seeds=1, store=tmp_path / "s")
    assert [record["method"] for record in found.records()] == ["mine", "theirs"]
    with Store.open(tmp_path / "s", read_only=True) as store:
        assert {info.name for info in store.runs(sweep="compare")} == {"mine", "theirs"}


def test_own_process() -> None:
    found = fs.compare("quadratic", "fedavg,everybody", fs.Bernoulli([1.0, 0.2, 0.2]), lr=0.02, rounds=6, seeds=1)
    assert found.settings.num_clients == 3
    assert all(len(who) == 3 for who in found["everybody, always"][0].participants)


def test_the_table_in_every_form(found: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    text = str(found)
    assert max(map(len, text.splitlines())) <= 80
    html = found._repr_html_()
    for label in ("FedAvg", "FedStale β=0.5", "everybody, always", "excess loss"):
        assert label in text
        assert label in html
    assert html.count("<tr>") == 5
    frame = found.to_pandas()
    assert frame.loc["FedAvg", "excess_loss"] == found.records()[0]["excess_loss"]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InvalidInput, match="pandas is not installed"):
        found.to_pandas()


def test_plot_and_files(found: Comparison, tmp_path: Path) -> None:
    import matplotlib.pyplot as plt

    before = dict(plt.rcParams)
    axis = found.plot()
    assert len(axis.get_legend().get_texts()) == 4
    assert axis.get_ylabel().startswith("Excess loss")
    assert found.plot("participants", ax=axis) is axis
    assert found.plot(x="seconds").get_xlabel() == "seconds of computing"
    with pytest.raises(InvalidInput, match="no run recorded virtual_seconds"):
        found.plot(x="virtual_seconds")
    with pytest.raises(InvalidInput, match=r"unknown x 'second'.*seconds"):
        found.plot(x="second")
    with pytest.raises(InvalidInput, match='"gap closed" needs U-FedAvg'):
        found.plot("gap closed")
    with pytest.raises(InvalidInput, match="unknown metric 'acc'"):
        found.plot("acc")
    files = found.save(tmp_path / "out")
    assert [path.name for path in files] == ["comparison.csv", "comparison.png", "comparison.svg"]
    assert all(path.stat().st_size > 300 for path in files)
    assert dict(plt.rcParams) == before
    plt.close("all")


def test_a_stored_comparison_is_read_and_not_run_again(tmp_path: Path) -> None:
    options: dict[str, Any] = {**SMALL, "seeds": 2, "store": tmp_path / "s"}
    first = fs.compare("quadratic", "fedavg,everybody", **options)
    with Store.open(tmp_path / "s", read_only=True) as store:
        infos = store.runs()
    assert {info.name for info in infos} == {"FedAvg", "everybody, always"}
    again = fs.compare("quadratic", "fedavg,fedstale:1,everybody", **options)
    with Store.open(tmp_path / "s", read_only=True) as store:
        assert len(store.runs()) == 6
    assert np.array_equal(first["FedAvg"][1].model, again["FedAvg"][1].model)
    assert repr(first["FedAvg"][0]) == repr(again["FedAvg"][0])
    unkept = fs.compare("quadratic", "fedavg", **{**options, "store": None})
    assert np.array_equal(unkept["FedAvg"][0].model, first["FedAvg"][0].model)


def test_everybody_in_a_store_has_the_labels_of_the_rare(tmp_path: Path) -> None:
    """Whose labels are swapped follows from who is rare: for the limit, too, and after it was read back."""
    options: dict[str, Any] = {"p_min": 0.5, "swap": 1.0, "rounds": 2, "seeds": 1, "local_steps": 1}
    kept = fs.compare("digits", "fedavg,everybody", store=tmp_path / "s", **options)
    free = fs.compare("digits", "fedavg,everybody", **options)
    for label in ("FedAvg", "everybody, always"):
        assert kept[label][0].final("swap_train") == free[label][0].final("swap_train") > 0
        assert np.array_equal(kept[label][0].model, free[label][0].model)
    with Store.open(tmp_path / "s") as store:
        limit = next(info for info in store.runs() if info.name == "everybody, always")
        config = limit.config
    run = fs.simulate(**{name: value for name, value in config.items() if value is not None})
    assert np.array_equal(run.model, free["everybody, always"][0].model)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ("fedavgg", "unknown rule 'fedavgg': did you mean fedavg"),
        ("fedstale:", "β stands behind the colon"),
        ([], "at least one method"),
        ([3], "must be names, rules such as FedStale, or methods"),
        (["fedavg", fs.FedAvg()], "two methods are called that"),
        ("fedstale@tape", "memory = 'tape'"),
    ],
)
def test_what_cannot_be_compared(rules: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        fs.compare("quadratic", rules, **SMALL)


def test_methods_by_name() -> None:
    assert methods(None) == DEFAULT
    assert [method.label for method in methods("fedstale+adam:0.5@lowrank:4,everybody")] == [
        "FedStale+adam β=0.5, lowrank:4",
        "everybody, always",
    ]
    assert methods(fs.FedVARP()) == (Method("fedvarp"),)
    assert len(methods("all")) > 20


def test_the_rule_of_a_file_is_compared_with_the_others() -> None:
    usual = fs.simulation.make_settings()
    own = fs.simulation.make_settings(rule="fedprox", rule_options={"mu": 0.3})
    assert set(file_methods(usual)) == set(DEFAULT)
    assert [method.label for method in file_methods(own)][-2:] == ["FedProx, mu 0.3", "everybody, always"]


# What it says in words


def says(objectives: dict[Method, list[float]]) -> list[str]:
    """The sentences of a comparison on data with these objectives, by method and seed."""
    seeds = range(len(next(iter(objectives.values()))))
    results: dict[Method, dict[int, Any]] = {}
    for method, values in objectives.items():
        results[method] = {seed: _Told(values[seed]) for seed in seeds}
    settings = fs.simulation.make_settings(rounds=1)
    return Comparison(settings, tuple(objectives), seeds, results).summary()


class _Told:
    """A run with one objective."""

    diverged_in = None
    rounds_planned = 1

    def __init__(self, objective: float) -> None:
        self.metrics = {"objective": np.array([objective]), "accuracy": np.array([0.9])}

    def tail(self, metric: str = "accuracy") -> float:
        return float(self.metrics[metric][-1])


FEDAVG, PLAIN, VARP, TEMPERED = (Method(name) for name in ("fedavg", "u-fedavg", "fedvarp", "tempered"))


def test_three_sentences_that_follow_from_the_numbers() -> None:
    told = says(
        {
            FEDAVG: [0.30, 0.31, 0.29],
            PLAIN: [0.15, 0.16, 0.14],
            VARP: [0.13, 0.14, 0.12],
            TEMPERED: [0.11, 0.12, 0.10],
            EVERYBODY: [0.10, 0.11, 0.09],
        }
    )
    assert len(told) == 3
    assert "0.300 ± 0.006; with everybody in every round it would be 0.100" in told[0]
    assert "a gap of 0.050 ± 0.000 that a memory may close" in told[1]
    assert told[2].startswith("Tempered FedStale closes 80%")
    assert "more than any other method compared; next comes FedVARP 40%" in told[2]


def test_what_the_seeds_cannot_tell_is_not_claimed() -> None:
    close = says({PLAIN: [0.15, 0.16], VARP: [0.11, 0.13], TEMPERED: [0.12, 0.115], EVERYBODY: [0.10, 0.11]})
    assert "the seeds cannot tell them apart" in close[-1]
    assert "more than any other" not in close[-1]
    none = says({FEDAVG: [0.3, 0.3], PLAIN: [0.10, 0.12], TEMPERED: [0.1, 0.1], EVERYBODY: [0.11, 0.10]})
    assert "cannot tell it from the limit" in none[-1]
    worse = says({PLAIN: [0.15, 0.16], TEMPERED: [0.25, 0.3], EVERYBODY: [0.10, 0.11]})
    assert worse[-1].startswith("No method closes a part of it that is beyond its error")
    one = says({FEDAVG: [0.3], PLAIN: [0.2], TEMPERED: [0.15], EVERYBODY: [0.1]})
    assert "one seed cannot tell" in one[0]
    assert "one seed cannot tell" in one[1]


def test_other_comparisons_say_what_they_can(found: Comparison) -> None:
    (sentence,) = found.summary()
    assert "has the best excess loss" in sentence
    wild = fs.compare("digits", "fedavg", p_min=0.5, rounds=3, lr=1e30, seeds=1)
    assert any("diverged in round" in sentence for sentence in wild.summary())
    assert replace(found, results={}).summary() == []
