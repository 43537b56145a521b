"""The panels: figures with the right numbers, or one line that says why there is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from fedstale.analysis.metrics import metric_title
from fedstale.board import figures, parts, run_settings
from fedstale.board.clients import ages, probabilities
from fedstale.board.curves import group
from fedstale.board.filters import matching
from fedstale.board.panels import Panel, Panels
from fedstale.board.source import Source
from fedstale.simulation import make_settings, simulate
from fedstale.store import Store

from .conftest import HOSTILE


def chosen(source: Source, text: str) -> Any:
    return group(matching(source.runs.values(), text))


def full(source: Source) -> Any:
    (info,) = matching(source.runs.values(), "probabilities=fedau")
    return info


def test_staleness_counts_as_the_simulator_does() -> None:
    came = {0: np.array([0, 1]), 1: np.array([0]), 2: np.array([0]), 3: np.array([0, 1]), 4: np.array([0])}
    found = ages(came, 3)
    assert found.longest[:2].tolist() == [1, 3]
    assert found.now[:2].tolist() == [1, 2]
    # Client 1 was 1, 2, 3 rounds old in rounds 1 to 3, then 1 in round 4 and 2 in the next.
    np.testing.assert_allclose(found.mean[:2], [1.0, 9 / 5])
    assert np.isnan([found.mean[2], found.longest[2], found.now[2]]).all()


def test_estimated_against_true_p(source: Source) -> None:
    info = full(source)
    found = probabilities(source, info, source.participants(info))
    assert found is not None
    assert not found.observed
    np.testing.assert_allclose(found.estimated, 0.9 * found.true)
    panel = Panels(source).inspected_run(info)[2]
    assert panel.instead == ""
    assert panel.figure["data"][1]["x"] == [1.0, 1.0, 1.0, 0.2, 0.2, 0.2]
    assert "RMS error" in panel.note


def test_one_line_where_something_was_not_recorded(source: Source) -> None:
    panels = Panels(source)
    curves = chosen(source, "p_min=0.5 swap=0 beta=0 lr=0.1")
    info = curves[0].runs[0]
    lines = [panel.instead for panel in panels.inspected_run(info)]
    assert lines[0].startswith("Participants were not recorded")
    assert "knew the true p" in lines[2]
    assert "recorded seconds" in panels.curve(curves, "accuracy", "seconds").instead
    assert "no excess loss" in panels.curve(curves, "excess_loss", "round").instead
    assert panels.curve([], "accuracy", "round").instead.startswith("Choose runs")
    for panel in (panels.beta([]), panels.groups([]), *panels.inspected_run(None)):
        assert panel.instead.startswith("Choose runs")


def test_every_panel_has_words_and_can_be_sent(source: Source) -> None:
    panels = Panels(source)
    curves = chosen(source, "swap=0.6 lr=0.1")
    found: list[Panel] = [panels.curve(curves, "accuracy", axis) for axis in ("round", "bytes")]
    found += [panels.beta(curves), panels.groups(curves), *panels.inspected_run(full(source))]
    for panel in found:
        assert panel.instead == ""
        assert panel.spoken
        assert panel.figure["layout"]["uirevision"]
        assert panel.figure["layout"]["xaxis"]["title"]["text"]
        assert panel.figure["layout"]["yaxis"]["title"]["text"]
        json.dumps(panel.figure, allow_nan=False)
    assert "standard error" in found[0].note
    assert "estimated from those that were" in found[1].note
    assert "Dotted: rare" in found[3].note


def test_names_are_text_in_figures(source: Source) -> None:
    panels = Panels(source)
    figure = panels.curve(group([full(source)]), "accuracy", "round").figure
    text = json.dumps(figure)
    assert "<script" not in text
    assert "<b>" not in text
    assert figures.plain(HOSTILE) in text
    assert figures.plain("a<b>&amp;") == "a&lt;b&gt;&amp;amp;"


def test_metrics_to_choose_from(source: Source) -> None:
    options = Panels(source).metrics(group([full(source)]))
    assert list(options) == ["accuracy"]
    assert list(Panels(source).metrics(chosen(source, "beta=0.5")))[:2] == ["accuracy", "test_loss"]


def test_p_min_stands_only_where_it_says_who_comes(tmp_path: Path) -> None:
    several: list[dict[str, Any]] = [
        {"participation": "markov", "participation_options": {"correlation": 0.5}},
        {"participation": "bernoulli", "participation_options": {"p": [1.0, 0.01]}, "num_clients": 2},
        {"participation": "phones"},
    ]
    with Store.open(tmp_path) as store:
        infos = [store.start(make_settings(**one).record()).info() for one in several]
    assert [run_settings.full(info)["p_min"] for info in infos] == [0.1, None, None]


def test_metrics_have_names_for_people() -> None:
    assert metric_title("accuracy_quantile4") == "Test accuracy, quantile 4 by p"
    assert metric_title("accuracy_group1") == "Test accuracy, rare clients"
    assert metric_title("my_score") == "my_score"


def test_long_curves_are_thinned_to_what_a_screen_shows() -> None:
    from fedstale.board.curves import PlottedCurve, _thinned

    x = np.arange(5000.0)
    thin = _thinned(PlottedCurve(x, x, x))
    assert len(thin.x) <= 600
    assert thin.x[0] == 0
    assert thin.x[-1] == 4999


def test_the_simulator_records_what_the_panels_need(tmp_path: Path) -> None:
    for seed, source_of_p in enumerate(("fedau", "known")):
        simulate("quadratic", store=tmp_path, num_clients=3, rounds=12, p_min=0.5, probabilities=source_of_p, seed=seed)
    opened = Source(tmp_path)
    by_source = {info.config["probabilities"]: info for info in opened.runs.values()}
    panels = Panels(opened)
    for panel in panels.inspected_run(by_source["fedau"]):
        assert panel.instead == ""
    found = probabilities(opened, by_source["fedau"], opened.participants(by_source["fedau"]))
    assert found is not None
    error = float(np.sqrt(np.mean((found.estimated - found.true) ** 2)))
    np.testing.assert_allclose(error, by_source["fedau"].summary["p_error"])
    assert sorted(found.true) == [0.5, 1.0, 1.0] or sorted(found.true) == [0.5, 0.5, 1.0]
    assert "knew the true p" in panels.inspected_run(by_source["known"])[2].instead
    seconds = panels.curve(group([by_source["known"]]), "excess_loss", "seconds")
    assert seconds.instead == ""
    opened.close()


def test_a_curve_ends_where_a_seed_diverged(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        for seed, ended in ((0, None), (1, 7), (2, 1)):
            run = store.start(make_settings(seed=seed, rounds=10, lr=9.0).record(), rounds_total=10)
            for t in range(10 if ended is None else ended - 1):
                run.record(t, {"accuracy": 0.5})
            run.finish("finished" if ended is None else "diverged", diverged_in=ended)
    source = Source(tmp_path)
    found = Panels(source)
    several = group([info for info in source.runs.values() if info.diverged_in != 1])
    panel = found.curve(several, "accuracy", "round")
    line, cross = panel.figure["data"][-2:]
    assert line["x"] == [1, 2, 3, 4, 5, 6]
    assert (cross["x"], cross["marker"]["symbol"]) == ([6], "x")
    assert "diverged in round 7 (1 of 2 seeds)" in panel.note
    assert "before it diverged in round 7" in panel.spoken
    at_once = group(matching(source.runs.values(), "seed=2"))
    assert "diverged in round 1" in found.curve(at_once, "accuracy", "round").instead
    shown = str(parts.rows(list(source.runs.values()))) + str(parts.legend(several))
    assert "'in round 7'" in shown
    assert "diverged in round 7 (1 of 2 seeds)" in shown
    assert not matching(source.runs.values(), "accuracy>0.1 seed=1")
    assert len(matching(source.runs.values(), "status=diverged diverged_in>1")) == 1
    source.close()
