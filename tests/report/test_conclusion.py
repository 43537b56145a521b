"""The conclusion says what the statistics support, and no more; one section per task; every setting that matters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from fedstale.report.conclusion import conclusion, leader
from fedstale.report.page import page
from fedstale.report.recipe import common, in_short
from fedstale.report.study import Study, studies
from fedstale.report.subject import find
from fedstale.simulation import make_settings
from fedstale.store import Store


def filled(
    folder: Path, accuracies: Mapping[str, Sequence[float]], p_min: Sequence[float] = (0.1,), task: str = "digits"
) -> Store:
    """A store with the accuracies of each rule, one per seed, in every setting."""
    store = Store.open(folder)
    for p in p_min:
        for rule, values in accuracies.items():
            for seed, value in enumerate(values):
                settings = make_settings(task=task, rule=rule, p_min=p, seed=seed, rounds=4)
                with store.start(settings.record(), name=settings.label, rounds_total=4) as run:
                    for t in range(4):
                        run.record(t, {"accuracy": value, "accuracy_tail": value})
    return store


def study(store: Store) -> Study:
    (made,), _ = studies(store, store.runs())
    return made


def test_a_method_that_is_ahead_is_named_with_its_gain(tmp_path: Path) -> None:
    with filled(tmp_path, {"fedavg": [0.90, 0.91, 0.90], "mifa": [0.93, 0.94, 0.935]}) as store:
        first, second = conclusion(study(store))
        text = page(store, find(store, None))
    assert first.startswith("MIFA is ahead of every other method by more than two standard errors")
    assert second == "The best mean is that of MIFA: its accuracy is 3.17 ± 0.17 points above that of FedAvg."
    assert text.index(first[:20]) < text.index("<table")  # it opens the section
    assert text.count("<b>") == 1


def test_what_is_within_the_error_is_not_called_best(tmp_path: Path) -> None:
    with filled(tmp_path, {"fedavg": [0.90, 0.95, 0.90], "mifa": [0.93, 0.91, 0.95]}) as store:
        found = study(store)
        first, second = conclusion(found)
        text = page(store, find(store, None))
    assert first.startswith("No method is ahead of all others by more than two")
    assert second.endswith("points above that of FedAvg, which the seeds do not tell from nothing.")
    assert leader(found.cells) is None
    assert "<b>" not in text


def test_one_seed_decides_nothing(tmp_path: Path) -> None:
    with filled(tmp_path, {"fedavg": [0.5], "mifa": [0.9]}) as store:
        first, second = conclusion(study(store))
    assert first.startswith("There is one seed, which decides nothing")
    assert "do not tell from nothing" in second


def test_several_settings_are_counted(tmp_path: Path) -> None:
    better = {"fedavg": [0.90, 0.91, 0.90], "mifa": [0.93, 0.94, 0.935]}
    with filled(tmp_path, better, (0.1, 0.5)), filled(tmp_path, {k: v[:1] for k, v in better.items()}, (0.2,)) as store:
        first, second = conclusion(study(store))
    assert first.startswith("MIFA is ahead of every other method in 2 of 3 settings")
    assert first.endswith("; in 1 no method is.")
    assert second.startswith("The best mean is that of MIFA: over the 3 settings its accuracy is")


def test_a_method_alone_is_not_compared(tmp_path: Path) -> None:
    with filled(tmp_path, {"mifa": [0.93, 0.94]}) as store:
        assert conclusion(study(store)) == (
            "There is one method, MIFA: nothing is compared.",
            "Its accuracy is 93.5% ± 0.5%.",
        )


@pytest.mark.parametrize("alias", ["digits", "digits-mlp"])
def test_a_task_has_one_section_whatever_it_is_called(tmp_path: Path, alias: str) -> None:
    with (
        filled(tmp_path, {"fedavg": [0.9, 0.91]}, task="digits-mlp"),
        filled(tmp_path, {"mifa": [0.9, 0.91]}, task=alias) as store,
    ):
        made, _ = studies(store, store.runs())
        text = page(store, find(store, None))
    assert [one.task for one in made] == ["digits-mlp"]
    assert made[0].methods == ["FedAvg", "MIFA"]
    assert text.count("<h2") == 2  # and what the report is about, at the end


def test_every_setting_that_matters_is_listed(tmp_path: Path) -> None:
    with filled(tmp_path, {"fedavg": [0.9, 0.91], "mifa": [0.9, 0.92]}) as store:
        found = common(study(store).runs)
        text = page(store, find(store, None))
    assert found["lr"] == 0.1  # that of the task, which was used
    assert {"num_clients", "participation", "p_min", "swap", "probabilities", "rounds", "weights"} <= found.keys()
    assert not {"rule", "seed", "engine", "threads"} & found.keys()
    assert in_short(found) in text
    for name in found:
        assert f">{name}</th>" in text


HERE: list[dict[str, Any]] = [
    {"p_min": 0.5},
    {"participation": "bernoulli", "participation_options": {"p": 0.3}, "rounds": 20},
]


@pytest.mark.parametrize("here", HERE, ids=["two groups", "another process"])
def test_the_objective_and_the_gap_are_told_where_they_were_recorded(here: dict[str, Any], tmp_path: Path) -> None:
    accuracy, objective = (0.95, 0.90, 0.91, 0.90), (0.30, 0.14, 0.10, 0.09)
    with Store.open(tmp_path) as store:
        for k, rule in enumerate(["fedavg", "u-fedavg", "mifa", "fedavg"]):
            for seed in range(3):
                # As `compare` writes them: everybody in every round is p_min 1 with the number of rounds written down.
                changes = {"p_min": 1.0, "rounds": 20} if k == 3 else here
                settings = make_settings(rule=rule, seed=seed, **changes)
                with store.start(settings.record(), rounds_total=20) as run:
                    numbers = {"accuracy": accuracy[k] + 0.001 * seed, "objective": objective[k] + 0.001 * seed}
                    for t in range(20):
                        run.record(t, numbers)
        found = study(store)
        first, _ = conclusion(found)
        text = page(store, find(store, None))
    assert found.keys == ["p_min"] if len(here) == 1 else ["participation", "p_min", "participation_options"]
    assert len(here) == 1 or ">–</t" in text  # p_min does not say who comes
    assert first.startswith("By test accuracy, FedAvg is ahead of every other method by more than")
    assert first.endswith("; by the training loss over all clients, which the rules minimise, MIFA is.")
    assert "<b>0.101 ± 0.001</b>" in text
    assert "80% ± 0%" in text  # (0.14 − 0.10) / (0.14 − 0.09)
