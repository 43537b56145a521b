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
