"""Reports: right numbers, everything from the store is text, one file by itself, readable without eyes."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from fedstale import report
from fedstale.analysis import HeatMap
from fedstale.analysis.verdicts import judged
from fedstale.paper import auto_claims, claims
from fedstale.simulation import Settings, make_settings
from fedstale.store import Store
from fedstale.sweeps import results

from .made_up import add, grid, learning, opened
from .reading import Element, read, table

EVIL = "<script>alert('1')</script><img src=x onerror=\"alert(2)\">&amp;"


def page(store: Store, what: str | None = None) -> Element:
    return read(report.page(store, report.find(store, what), claims.claims_of_store))


@pytest.fixture
def swept(tmp_path: Path) -> Store:
    store = opened(tmp_path / "s")
    grid(store)
    return store


def selfcontained(root: Element) -> None:
    """No script, nothing that is fetched, nothing that acts."""
    for element in root.every():
        assert element.name not in {"script", "img", "iframe", "object", "embed", "link", "form", "foreignobject"}
        for name, value in element.attributes.items():
            assert not name.startswith("on")
            assert name not in {"src", "style", "xlink:href", "action"}
            if name == "href":
                assert value is not None
                assert value.startswith("#")
    (style,) = root.all("style")
    assert not re.search(r"url\(|@import|@font-face|https?:", style.text)


def accessible(root: Element) -> None:
    """A language, one first heading, levels without gaps, captions, names of drawings."""
    assert root.all("html")[0].attributes["lang"] == "en"
    levels = [int(one.name[1]) for one in root.every() if re.fullmatch(r"h[1-6]", one.name)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b <= a + 1 for a, b in pairwise(levels))
    for one in root.all("table"):
        assert one.all("caption")[0].text.strip()
        assert all(cell.attributes.get("scope") in ("col", "row") for cell in one.all("th"))
    for one in root.all("svg"):
        hidden = one.attributes.get("aria-hidden") == "true"
        told = one.attributes.get("aria-label") or ""
        assert hidden or (one.attributes.get("role") == "img" and len(told) > 20)
    for link in root.all("a"):
        assert any(one.attributes.get("id") == (link.attributes["href"] or "")[1:] for one in root.every())


def test_a_sweep(swept: Store) -> None:
    root = page(swept, "grid")
    selfcontained(root)
    accessible(root)
    assert root.all("h1")[0].text == "grid"
    facts = root.all("dl")[0].text
    assert "48 finished" in facts
    assert "0, 1" in facts
    charts = [one for one in root.all("svg") if one.attributes.get("role") == "img"]
    assert len(charts) == 4 * 6  # places × charts
    assert all("nan" not in str(one.attributes) for one in root.every())


def test_the_comparison_has_the_right_numbers(swept: Store) -> None:
    rows = table(page(swept, "grid"), "Test accuracy: mean")
    assert rows[0] == ["swap", "p_min", "method", "accuracy", "frequent clients", "rare clients", "β", "seeds"]
    assert len(rows) == 1 + 4 * 6
    swap, p_min = 0.0, 0.1  # the first place
    assert rows[1][:3] == ["0", "0.1", "FedStale β=0 (U-FedAvg)"]
    tails = []
    for seed in (0, 1):
        one = make_settings(p_min=p_min, swap=swap, beta=0.0, seed=seed, lr=0.1)
        at = np.unique(np.linspace(1, 100, 10).astype(int))
        tails.append(np.mean([learning(one, t / 100) for t in at if t - 1 >= 90]))
    mean, error = np.mean(tails), np.std(tails, ddof=1) / np.sqrt(2)
    assert rows[1][3] == f"{mean:.1%} ± {error:.1%}"
    assert rows[1][4] == f"{mean + 0.01:.1%} ± {error:.1%}"
    assert rows[1][-1] == "2"


def test_what_another_method_equals_is_not_bold(swept: Store) -> None:
    root = page(swept, "grid")
    (found,) = [one for one in root.all("table") if one.all("caption")[0].text.startswith("Test accuracy: mean")]
    assert not found.all("b")  # auto is made up to be as good as β = 0.5


def test_rates_are_tuned(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        grid(store, p_min=(0.5,), swaps=(0.0,), betas=(0.5,), rates=(1.0, 0.1, 0.01))
        rows = table(page(store), "Test accuracy: mean")
    assert rows[0][-2] == "learning rate"
    assert rows[1][-2:] == ["0.1 (of 3)", "2"]


def test_the_heat_map_is_the_papers(swept: Store) -> None:
    root = page(swept, "grid")
    rows = table(root, "The β with the best test accuracy")
    whole = HeatMap.of(results(swept, [make_settings(**info.config) for info in swept.runs()]))
    assert [row[0] for row in rows[1:]] == ["0.6", "0"]
    for row in rows[1:]:
        for cell, p in zip(row[1:], (0.5, 0.1), strict=True):
            place = (p, float(row[0]))
            gains = [whole.gain(place, 0.5, end).short() for end in (0.0, 1.0)]
            assert whole.best(place) == 0.5
            assert cell == f"0.5{'*' * whole.starred(place)}Δ₀ {gains[0]}Δ₁ {gains[1]}"
    assert table(root, "β = “auto” minus")[1][1:] == ["+0.0±0.0", "+0.0±0.0"]


def test_the_claims_are_the_papers(swept: Store) -> None:
    rows = table(page(swept, "grid"), "The claims of the paper")
    whole = HeatMap.of(results(swept, [make_settings(**info.config) for info in swept.runs()]))
    found = [*claims.fig2_findings(whole), *claims.fig34_findings(whole), *claims.fig5_findings(whole, HeatMap([]))]
    expected = judged([*found, *auto_claims.auto_findings(whole)])
    assert [tuple(row) for row in rows[1:]] == [one.cells() for one in expected]


def test_no_claims_without_the_grid(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        grid(store, betas=(0.0, 1.0))
        assert "claims" not in "".join(one.text for one in page(store).all("h3"))


def test_everything_from_the_store_is_text(tmp_path: Path) -> None:
    with opened(tmp_path / "x") as store:
        add(store, make_settings(rule="fedstale", beta=0.5, rounds=20), sweep=EVIL)
        run = store.start({"task": EVIL, EVIL: EVIL, "deep": {EVIL: [EVIL]}}, name=EVIL)
        run.record(0, {EVIL: 1.0, "accuracy": 0.5}, clients={EVIL: np.ones(3)})
        run.finish("failed", EVIL)
        other = store.start({"x": EVIL, "deep": {EVIL: [EVIL]}}, name="other")
        other.record(0, {EVIL: 1.0}, participants=[0, 2], clients={EVIL: np.ones(3)})
        other.record(1, {EVIL: 2.0}, participants=[])
        other.finish()
        odd = make_settings(task=EVIL, rule=EVIL, participation_options={EVIL: EVIL}, rounds=20)
        add(store, odd)
        for what in (None, EVIL, "other", run.id, odd.label):
            root = page(store, what)
            selfcontained(root)
            accessible(root)
            assert EVIL in root.text


def test_a_run(tmp_path: Path) -> None:
    one = make_settings(p_min=0.1, swap=0.6, rounds=30, seed=4, per_client=True)
    with opened(tmp_path) as store:
        run = store.start(one.record(), name="mine", rounds_total=30)
        rng = np.random.default_rng(0)
        for t in range(30):
            who = np.flatnonzero(rng.random(24) < 0.5)
            run.record(t, {"accuracy": 0.5 + t / 60, "test_loss": 1.0, "beta": 0.2}, participants=who)
        run.finish()
        root = page(store, "mine")
    selfcontained(root)
    accessible(root)
    assert table(root, "Settings that are not")[1:] == [
        ["swap", "0.6", "fraction of two labels to swap in the rare group (σ̂_g²)"],
        ["rule", "tempered", Settings.model_fields["rule"].description],
        ["rounds", "30", "number of rounds T; default: 10/p_min"],
        ["seed", "4", "random seed: participation, batches, partition, initial model"],
        ["per_client", "yes", "also record the accuracy of every client"],
    ]
    assert "fedstale run digits-mlp --swap 0.6 --rule tempered --rounds 30 --seed 4 --per-client" in root.text
    titles = [one.text for one in root.all("figcaption")]
    assert titles == ["Test accuracy", "Test loss", "β", "Who came"]
    (raster,) = [one for one in root.all("svg") if "Who came" in (one.attributes.get("aria-label") or "")]
    assert "24 clients, 30 rounds" in (raster.attributes["aria-label"] or "")


@pytest.mark.parametrize("values", [[np.nan, np.nan], [np.inf, 1.0], [0.5], [1e-320, 1e308], [-np.inf, np.nan]])
def test_odd_numbers(values: list[float], tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for task in ("digits-mlp", "quadratic"):
            run = store.start(make_settings(task=task, rounds=2, num_clients=2).record(), name=task)
            for t, value in enumerate(values):
                run.record(t, {"accuracy" if task != "quadratic" else "excess_loss": value, "beta": value})
            run.finish()
        for what in (None, "digits-mlp", "quadratic"):
            root = page(store, what)
            accessible(root)
            for one in root.every():
                d = one.attributes.get("d") or ""
                assert "nan" not in d
                assert "inf" not in d


def test_what_is_not_finished(tmp_path: Path) -> None:
    one = make_settings(rounds=20, beta=0.5)
    with opened(tmp_path) as store:
        for seed, (status, message) in enumerate((("failed", "no disk"), ("interrupted", ""))):
            run = store.start(one.replace(seed=seed).record(), name=f"r{seed}", rounds_total=20)
            run.record(0, {"accuracy": 0.1})
            run.finish(status, message)
        diverged = store.start(one.replace(seed=5).record(), name="r5", rounds_total=20)
        diverged.record(0, {"accuracy": 0.1})
        diverged.finish("diverged", diverged_in=2)
        going = store.start(one.replace(seed=6).record(), name="r6", rounds_total=20)
        root = page(store)
        going.finish()
    rows = table(root, "Runs that did not reach their last round")
    assert [row[:3] for row in rows[1:]] == [
        ["r6", "running", "0 of 20"],
        ["r1", "interrupted", "1 of 20"],
        ["r0", "failed", "1 of 20"],
        ["r5", "diverged", "1 of 20"],
    ]
    assert rows[3][3] == "no disk"
    assert rows[4][3] == "diverged in round 2"
    assert "1 diverged" in root.text
    assert table(root, "Test accuracy: mean")[1][1] == "diverged in round 2"


def test_an_empty_store(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        assert "There is no run here yet" in page(store).text


def test_quadratics_by_their_loss(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for rule, excess in (("fedavg", 4.0), ("u-fedavg", 2.0)):
            for seed in (0, 1):
                one = make_settings(task="quadratic", num_clients=2, rule=rule, rounds=20, seed=seed)
                run = store.start(one.record())
                for t in range(20):
                    run.record(t, {"excess_loss": excess + seed})
                run.finish()
        rows = table(page(store), "Excess loss: mean")
    assert [row[:2] for row in rows[1:]] == [["FedAvg", "4.5 ± 0.5"], ["U-FedAvg", "2.5 ± 0.5"]]


def test_equal_runs_count_once_and_what_changes_nothing_is_left_out(tmp_path: Path) -> None:
    one = make_settings(rounds=20, beta=0.5)
    with opened(tmp_path) as store:
        for again in (one, one, one.replace(engine="loop"), one.replace(threads=1), one.replace(per_client=True)):
            add(store, again)
        rows = table(page(store), "Test accuracy: mean")
    assert [row[-1] for row in rows[1:]] == ["1"]


@pytest.mark.slow
def test_five_thousand_runs_are_a_file_to_be_mailed(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        p_min = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002)
        grid(
            store, p_min=p_min, swaps=(0.0, 0.2, 0.4, 0.6, 0.8, 1.0), seeds=3, rates=(1.0, 0.3, 0.1, 0.03, 0.01, 0.003)
        )
        html = report.page(store, report.find(store, "grid"))
        assert len(store.runs()) == 5184
    assert len(html) < 1_000_000
    accessible(read(html))


def test_rules_that_were_handed_over_are_told_apart(tmp_path: Path) -> None:
    """A run of `simulate` with a rule object keeps what the rule was made with, not its name alone."""
    import fedstale as fs
    from fedstale import rules

    with opened(tmp_path) as store:
        for rule in (
            fs.FedStale(beta=0.2),
            fs.FedStale(beta=0.7),
            rules.ServerMomentum(fs.FedStale(beta=0.2), beta1=0.5),
        ):
            fs.simulate("quadratic", rule, num_clients=3, rounds=20, store=store)
        rows = table(page(store), "Excess loss: mean")
    assert [row[0] for row in rows[1:]] == ["FedStale β=0.2", "FedStale β=0.7", "FedStale+momentum β=0.2, beta1 0.5"]


def test_seeds_that_diverged_are_counted_not_left_out(tmp_path: Path) -> None:
    calm, wild = make_settings(rounds=20, beta=0.5), make_settings(rounds=20, beta=0.0)
    with opened(tmp_path) as store:
        for seed in range(3):
            add(store, calm.replace(seed=seed), sweep="s")
        add(store, wild.replace(seed=0), sweep="s")
        for seed, round in ((1, 12), (2, 17)):
            run = store.start(wild.replace(seed=seed).record(), sweep="s", name=f"wild{seed}", rounds_total=20)
            for t in range(1, round - 1, 2):
                run.record(t, {"accuracy": 0.9})
            run.finish("diverged", diverged_in=round)
        whole, one = page(store, "s"), page(store, "wild2")
    accessible(whole)
    said = "diverged in rounds 12 to 17 (2 of 3 seeds)"
    rows = table(whole, "Test accuracy: mean")[1:]
    assert [row[:2] for row in rows] == [["FedStale β=0.5", rows[0][1]], ["FedStale β=0 (U-FedAvg)", said]]
    assert f"FedStale β=0 (U-FedAvg): {said}" in whole.text  # above the curves, and at the cross that ends one
    crosses = [title for title in whole.all("title") if title.text == f"FedStale β=0 (U-FedAvg): {said}"]
    assert crosses
    assert "diverged in round 17, 10 of 20 rounds" not in one.text
    assert "diverged in round 17" in one.text
    assert "before it diverged in round 17" in one.text


def test_runs_with_nested_configs_are_shown_and_unwritten_ones_kept_apart(tmp_path: Path) -> None:
    import fedstale as fs
    from fedstale.participation import Markov

    who = Markov([1.0, 0.5, 0.3], 0.5)
    with opened(tmp_path) as store:
        for rule in (fs.FedStale(beta={0: 0, 10: 1}), fs.FedStale(beta=lambda t: 0.5), fs.FedStale(beta=lambda t: 0.1)):
            fs.simulate("quadratic", rule, who, rounds=20, store=store)
        html = page(store).text
    assert "FedStale β={0: 0, 10: 1}" in html
    assert "Markov(p=[1, 0.5, 0.3], correlation=0.5)" in html
    assert "is not written down" in html
    assert "3 runs" in html


def test_a_study_with_a_clock_has_curves_over_virtual_time(tmp_path: Path) -> None:
    store = opened(tmp_path / "s")
    for beta in (0.0, 0.5):
        one = make_settings(beta=beta, rounds=20)
        run = store.start(one.record(), rounds_total=20)
        for t in range(20):
            run.record(t, {"accuracy": learning(one, t / 20), "virtual_seconds": 7200.0 * (t + 1)})
        run.finish()
    root = page(store)
    (drawing,) = (one for one in root.all("svg") if "over virtual time" in str(one.attributes.get("aria-label")))
    assert "virtual time (hours) 2 to 40" in str(drawing.attributes["aria-label"])
