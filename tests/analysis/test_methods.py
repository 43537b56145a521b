"""What a method is called and its colour: the same everywhere, whatever stands beside it."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest

from fedstale import configs
from fedstale.analysis import config_label, method_label, method_order, style, styles
from fedstale.analysis.methods import NAMES
from fedstale.analysis.metrics import group_name, main_metric, metric_text
from fedstale.analysis.palette import COLOURS, DASHES, DIVERGING, SEQUENTIAL, blend
from fedstale.beta import Auto
from fedstale.checks import Float
from fedstale.rules import RULES
from fedstale.simulation import make_settings
from fedstale.simulation.methods import _ALL, DEFAULT


def test_names_are_of_rules() -> None:
    """A rule that is not listed keeps its own name: a new one need not be."""
    assert set(NAMES) <= set(RULES)
    assert len(set(NAMES.values())) == len(NAMES)


@pytest.mark.parametrize(
    ("config", "label"),
    [
        ({"rule": "fedavg"}, "FedAvg"),
        ({"rule": "fedstale"}, "FedStale β=auto"),  # the rule's own default
        ({"rule": "fedstale", "beta": 0.5}, "FedStale β=0.5"),
        ({"rule": "fedstale", "beta": 0.0}, "FedStale β=0 (U-FedAvg)"),
        ({"rule": "fedstale", "beta": 1.0, "memory": "ram"}, "FedStale β=1 (U-FedVARP)"),
        ({"rule": "fedstale+adam", "beta": "auto", "memory": "lowrank:4"}, "FedStale+adam β=auto, lowrank:4"),
        ({"rule": "fedprox", "rule_options": {"mu": 0.1}, "server_lr": 0.5}, "FedProx, mu 0.1, η_s 0.5"),
        ({"rule": "mine", "beta": configs.to_config(Auto(forget=0.9))}, "mine β=Auto(forget=0.9)"),
        ({}, ""),
    ],
)
def test_one_spelling(config: dict[str, object], label: str) -> None:
    assert config_label(config) == label


def test_settings_methods_and_configs_agree() -> None:
    for method in (method for method in DEFAULT if not method.everybody):
        one = make_settings(rule=method.rule, beta=method.beta)
        assert one.label == method.label == config_label(one.record())


def test_the_limit_looks_like_no_method() -> None:
    limit = DEFAULT[-1]
    assert limit.everybody
    assert style(limit.label) not in styles([method.label for method in _ALL if not method.everybody])


def test_fixed_betas_stand_before_words_and_in_order() -> None:
    labels = [method_label("fedstale", beta) for beta in ("auto", 1.0, 0.2, 0.0, 0.5)]
    labels += [method_label(name) for name in ("scaffold", "u-fedvarp", "fedavg")]
    ordered = sorted(labels, key=method_order)
    assert ordered[:2] == ["FedAvg", "U-FedVARP"]
    assert ordered[2:7] == [method_label("fedstale", beta) for beta in (0.0, 0.2, 0.5, 1.0, "auto")]
    assert ordered[7] == "SCAFFOLD"


def test_colours_do_not_depend_on_the_company() -> None:
    labels = [method.label for method in _ALL]
    together = dict(zip(labels, styles(labels), strict=True))
    assert together == {label: style(label) for label in labels}
    assert len(set(together.values())) == len(labels)  # and no two methods look alike
    backwards = labels[::-1]
    assert styles(backwards) == [together[label] for label in backwards]
    assert style("a rule of one's own").dashes in DASHES[4:-1]  # which no listed method has


def test_a_method_has_one_colour_under_both_its_names() -> None:
    for name, beta in (("u-fedavg", 0.0), ("u-fedvarp", 1.0)):
        one, other = styles([method_label(name), method_label("fedstale", beta)])
        assert one.colour == other.colour
        assert one.dashes != other.dashes  # side by side they are told apart


def test_many_lines_of_one_method_are_told_apart() -> None:
    several = styles(["FedStale β=auto"] * 24)
    assert len(set(several)) == 24
    assert {one.colour for one in several[: len(DASHES)]} == {style("FedStale β=auto").colour}


def channels(colour: str) -> Float:
    values = np.array([int(colour[k : k + 2], 16) for k in (1, 3, 5)]) / 255
    return np.asarray(np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4))


def luminance(colour: str) -> float:
    return float(channels(colour) @ [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize("page", ["#ffffff", "#181e26", "#1b1f23"])
def test_colours_can_be_seen_on_light_and_dark_pages(page: str) -> None:
    for colour in COLOURS:
        light, dark = sorted([luminance(colour), luminance(page)], reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 3.0, colour


SIGHT = {
    # Machado, Oliveira and Fernandes 2009, in linear RGB.
    "normal": np.eye(3),
    "without red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "without green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "without blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
XYZ = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]])


def lab(rgb: Float) -> Float:
    ratio = XYZ @ np.clip(rgb, 0, 1) / [0.95047, 1.0, 1.08883]
    f = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("sight", SIGHT)
def test_colours_are_told_apart_by_everybody(sight: str) -> None:
    """A distance of 2.3 in CIELAB can just be seen side by side; lines in a chart need several times that."""
    seen = [lab(np.asarray(SIGHT[sight]) @ channels(colour)) for colour in COLOURS]
    assert min(float(np.linalg.norm(a - b)) for a, b in combinations(seen, 2)) > 15.0


def test_heat_maps_read_without_colour() -> None:
    assert blend(SEQUENTIAL, 0.0) == SEQUENTIAL[0]
    assert blend(SEQUENTIAL, 2.0) == SEQUENTIAL[-1]
    assert blend(DIVERGING, 0.5) == DIVERGING[2]
    assert blend(("#000000", "#ff8000"), 0.5) == "#804000"
    levels = [luminance(blend(SEQUENTIAL, share)) for share in np.linspace(0, 1, 21)]
    assert all(a > b for a, b in pairwise(levels))


def test_numbers_of_metrics_are_written_alike_everywhere() -> None:
    assert metric_text("accuracy_group1", 0.875) == "87.5%"
    assert metric_text("excess_loss", 0.00123456) == "0.00123"
    assert metric_text("accuracy", float("nan")) == "–"
    assert main_metric({"excess_loss", "accuracy"}) == "accuracy"
    assert main_metric({"excess_loss", "beta"}) == "excess_loss"
    assert main_metric({"beta"}) is None
    assert [group_name(k) for k in range(3)] == ["frequent clients", "rare clients", "group 2"]
