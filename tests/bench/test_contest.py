"""Choosing rates: every entry gets its own, also where two of them are the same run."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from fedstale.bench.contest import Entry, all_present, choose_rates
from fedstale.simulation import Settings, make_settings
from fedstale.store import Store
from fedstale.sweeps import sweep

SMALL: dict[str, Any] = {"task": "quadratic", "rule": "fedavg", "rounds": 4, "num_clients": 4, "evaluate_every": 2}


def test_everybody_is_one_run_in_places_that_differ_only_in_who_comes(tmp_path: Path) -> None:
    def settings(given: dict[str, Any], rate: float, seed: int) -> Settings:
        return make_settings(**SMALL, **given, lr=rate, seed=seed)

    places = {"often": {"p_min": 0.5}, "rarely": {"p_min": 0.2}}
    entries = [
        Entry(name, "everybody", partial(settings, all_present(given)), (1e-3, 1e-4)) for name, given in places.items()
    ]
    with Store.open(tmp_path / "store") as store:
        chosen = choose_rates(entries, [0], store, lambda runs: sweep(runs, store, name="test"))
    assert {entry.key for entry in entries} == {*chosen.cells, *chosen.failures}
    assert len({id(cell) for cell in chosen.cells.values()}) <= 1
    assert all(len(cell.runs) == 1 for cell in chosen.cells.values())


def test_methods_of_a_place_are_tried_at_the_same_rates(tmp_path: Path) -> None:
    def settings(rule: str, rate: float, seed: int) -> Settings:
        return make_settings(**SMALL | {"rule": rule}, p_min=0.5, lr=rate, seed=seed)

    rates = {"fedavg": (1e-2, 1e-3, 1e-4), "mifa": (1e-1, 1e-2, 1e-3)}
    entries = [Entry("place", rule, partial(settings, rule), own) for rule, own in rates.items()]
    tried: dict[bool, dict[str, set[float]]] = {}
    for same_rates in (False, True):
        with Store.open(tmp_path / f"store{same_rates}") as store:
            run = lambda runs, store=store: sweep(runs, store, name="test")  # noqa: E731
            chosen = choose_rates(entries, [0], store, run, same_rates=same_rates)
            assert {entry.key for entry in entries} == {*chosen.cells}
            own = tried[same_rates] = {}
            for info in store.runs(limit=None):
                own.setdefault(info.config["rule"], set()).add(float(f"{info.config['lr']:.6g}"))
    assert tried[False]["fedavg"] != tried[False]["mifa"]
    assert tried[True]["fedavg"] == tried[True]["mifa"] >= tried[False]["fedavg"] | tried[False]["mifa"]
