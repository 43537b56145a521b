"""What a user may pass is written whole, or named and refused: never guessed."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedstale as fs
from fedstale import beta, participation, rules
from fedstale.checks import InvalidInput
from fedstale.configs import CLASSES, check_same, from_config, same, text, to_config, unwritten, whole
from fedstale.participation import Bernoulli, Markov, TimeVarying, Trace

from .objects import every, missing


@dataclass(frozen=True, kw_only=True)
class OwnRule(fs.FedAvg):
    mu: float = 0.5


def concrete(kind: type[Any]) -> set[type[Any]]:
    """The classes of the library below one that have nothing abstract left."""
    below = {one for child in kind.__subclasses__() for one in concrete(child)}
    if kind.__module__.startswith("fedstale.") and not getattr(kind, "__abstractmethods__", ()):
        below.add(kind)
    return below


@pytest.mark.parametrize(
    "base", [fs.Rule, beta.Beta, participation.Estimator, participation.Process, participation.Selection]
)
def test_every_class_of_the_library_can_be_written(base: type[Any]) -> None:
    assert concrete(base) - set(CLASSES.values()) == set()


def test_every_class_is_tried() -> None:
    assert missing == set(), "give tests/configs/objects.py a strategy for it"


@given(data=st.data(), name=st.sampled_from(sorted(every)))
def test_what_is_written_is_read_back(data: st.DataObject, name: str) -> None:
    made = data.draw(every[name])
    config = to_config(made)
    assert CLASSES[config["class"]] is type(made)
    assert whole(config)
    again = from_config(json.loads(json.dumps(config, allow_nan=False)))
    assert same(again, made)
    assert to_config(again) == config
    assert isinstance(text(config), str)


def test_equality_looks_at_every_field() -> None:
    one = Markov([0.5, 0.1], 0.5)
    assert same(one, Markov(np.array([0.5, 0.1]), [0.5, 0.5]))
    one.available(0, 5)  # what it remembers to be fast is no part of what it is
    assert same(one, Markov([0.5, 0.1], 0.5))
    for other in (Markov([0.5, 0.2], 0.5), Markov([0.5, 0.1], 0.4), Markov([0.5, 0.1], 0.5, labels=[0, 1]), 3):
        assert not same(one, other)
    assert not same(Bernoulli([0.5, 0.1]), one)
    assert not same(fs.FedStale(beta="auto"), fs.FedStale(beta=beta.Auto()))


def half(round: int) -> float:
    return 0.5


@pytest.mark.parametrize(
    ("made", "names"),
    [
        (fs.FedStale(beta=half), [f"{__name__}.half"]),
        (OwnRule(mu=2.0), [f"{__name__}.OwnRule"]),
        (rules.ServerAdam(rules.Guarded(OwnRule(), clip_norm=1.0)), [f"{__name__}.OwnRule"]),
        (TimeVarying(lambda t: [0.5, 0.5], 3), [f"{__name__}.<lambda>"]),
        (Trace(2, 200_000, np.arange(200_000), np.zeros(200_000, int)), ["numpy.ndarray", "numpy.ndarray"]),
    ],
)
def test_what_cannot_be_written_is_named_and_refused(made: Any, names: list[str]) -> None:
    config = json.loads(json.dumps(to_config(made)))
    assert list(unwritten(config)) == names
    assert not whole(config)
    assert len(json.dumps(config)) < 1000
    with pytest.raises(InvalidInput, match=r"pass the object again, resume\(run, rule=…\)"):
        from_config(config, "rule")
    check_same("rule", config, made)


def test_another_object_than_the_recorded_one_is_refused() -> None:
    recorded = json.loads(json.dumps(to_config(OwnRule(mu=2.0))))
    for rule in (OwnRule(mu=3.0), fs.FedAvg()):
        with pytest.raises(InvalidInput, match=r"rule = .*: the run was made with OwnRule\(server_lr=1.0, mu=2.0\)"):
            check_same("rule", recorded, rule)
    with pytest.raises(InvalidInput, match="the run was made with FedStale"):
        check_same("rule", to_config(fs.FedStale(beta=half)), fs.FedStale(beta=lambda t: 0.5))
    trace = Trace(2, 200_000, np.arange(200_000), np.zeros(200_000, int))
    other = Trace(2, 200_000, np.arange(200_000), np.ones(200_000, int))
    with pytest.raises(InvalidInput, match="the run was made with"):
        check_same("participation", to_config(trace), other)


def test_a_script_that_is_imported_later_has_the_same_classes() -> None:
    recorded = {"not written": "__main__.OwnRule", "values": to_config(OwnRule())["values"]}
    check_same("rule", recorded, OwnRule())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"class": "FedStal"}, "unknown class in rule 'FedStal': did you mean FedStale"),
        ({"class": ["FedStale"]}, "unknown class in rule"),
        ({"class": "FedStale", "bta": 1}, "unknown field of FedStale: 'bta': did you mean beta"),
        ({"class": "Markov", "p": [0.5]}, "correlation = None: must be given for Markov in rule"),
        ({"class": "FedStale", "beta": 2}, "beta = 2"),
        ({"class": "Guarded", "rule": 3}, "must be a rule"),
        ({"class": "Trace", "num_clients": 2, "num_rounds": 3, "rounds": {"0": 1}, "clients": []}, "rounds"),
        ({"class": "Constant", "beta": {"class": "All"}}, "beta"),
        ({"beta": 2}, 'must have a "class"'),
        ({}, 'must have a "class"'),
    ],
)
def test_a_wrong_config_gives_one_line(config: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        from_config(config, "rule")
    assert "\n" not in str(caught.value)


def test_depth_is_bounded() -> None:
    config: Any = "auto"
    for _ in range(200):
        config = {"class": "ServerAdam", "rule": config}
    with pytest.raises(InvalidInput, match="nested more than"):
        from_config(config)


def test_texts_are_short() -> None:
    assert text(to_config(fs.FedStale(beta=beta.Auto(forget=0.9)))) == "FedStale(beta=Auto(forget=0.9))"
    assert text(to_config({0: 0.0, 10: 1.0})) == "{0: 0, 10: 1}"
    assert text(to_config(Markov(np.linspace(0.1, 1, 24), 0.5))) == "Markov(p=24 numbers, correlation=0.5)"
    assert text(to_config(fs.FedStale(beta=half))) == f"FedStale(beta={__name__}.half)"


def test_configs_need_no_torch() -> None:
    code = "import sys, fedstale.configs; sys.exit('torch' in sys.modules or 'pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
