"""Processes, selections and estimators by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedstale.checks import InvalidInput, UnknownName
from fedstale.participation import (
    ESTIMATORS,
    PROCESSES,
    SELECTIONS,
    All,
    Bernoulli,
    BetaFrequency,
    Correlated,
    Cyclic,
    FedAUEstimator,
    Forgetting,
    Fraction,
    KnownProbabilities,
    LeastRecent,
    Markov,
    TimeVarying,
    Trace,
    UniformSample,
    make,
    make_estimator,
    make_selection,
)

CASES: list[tuple[str, dict[str, Any], type, list[float]]] = [
    ("bernoulli", {"p": [0.5, 0.1]}, Bernoulli, [0.5, 0.1]),
    ("bernoulli", {"p": 0.5, "num_clients": 3}, Bernoulli, [0.5] * 3),
    ("bernoulli", {"p_min": 0.1, "num_clients": 4}, Bernoulli, [1, 1, 0.1, 0.1]),
    ("two-groups", {"num_clients": 4, "p_min": 0.2, "share": 0.25}, Bernoulli, [1, 1, 1, 0.2]),
    ("markov", {"num_clients": 4, "p_min": 0.2, "correlation": 0.9}, Markov, [1, 1, 0.2, 0.2]),
    ("correlated", {"p": [0.5, 0.1], "correlation": 0.3, "groups": [0, 1]}, Correlated, [0.5, 0.1]),
    ("cyclic", {"num_clients": 2, "period": 10, "open_fraction": 0.3}, Cyclic, [0.3, 0.3]),
    ("time-varying", {"num_clients": 2, "rounds": [0, 9], "values": [0.1, 0.7]}, TimeVarying, [0.7, 0.7]),
]


@pytest.mark.parametrize(("name", "options", "kind", "p"), CASES)
def test_processes_by_name(name: str, options: dict[str, Any], kind: type, p: list[float]) -> None:
    process = make(name, **options)
    assert type(process) is kind
    np.testing.assert_allclose(process.probabilities(), p, rtol=1e-15)
    assert process.available(0, 5).dtype == np.int64


def test_two_groups_survive_in_other_processes() -> None:
    for name in ("bernoulli", "markov", "correlated"):
        options: dict[str, Any] = {} if name == "bernoulli" else {"correlation": 0.5}
        process = make(name, num_clients=6, p_min=1.0, **options)
        np.testing.assert_array_equal(process.participation_groups(), [0, 0, 0, 1, 1, 1])


def test_a_trace_by_name(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("0,0\n1,1\n", encoding="utf-8")
    process = make("trace", path=tmp_path / "log.csv", num_clients=3, repeat=True)
    assert isinstance(process, Trace)
    np.testing.assert_array_equal(process.available(0, 3), [1])


def test_estimators_and_selections_by_name() -> None:
    assert make_estimator("fedau") == FedAUEstimator(cutoff=50)
    assert make_estimator("fedau", cutoff=7) == FedAUEstimator(cutoff=7)
    assert make_estimator("fedau-nocutoff") == FedAUEstimator(cutoff=None)
    assert make_estimator("beta", prior_a=0.5) == BetaFrequency(0.5, 1.0)
    assert make_estimator("forgetting", decay=0.9) == Forgetting(0.9)
    assert isinstance(make_estimator("known", p=[0.5]), KnownProbabilities)
    assert make_selection("all") == All()
    assert make_selection("uniform", m=3) == UniformSample(3)
    assert make_selection("fraction", f=0.5) == Fraction(0.5)
    assert make_selection("least-recent", m=2) == LeastRecent(2)


def test_every_name_is_covered_here() -> None:
    assert set(PROCESSES) == {name for name, *_ in CASES} | {"trace", "phones"}
    assert set(ESTIMATORS) == {"known", "fedau", "fedau-nocutoff", "beta", "forgetting", "daily"}
    assert set(SELECTIONS) == {"all", "uniform", "fraction", "least-recent"}


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: make("bernouli", p=[0.5]), "did you mean bernoulli"),
        (lambda: make("nothing-like-it"), "known: bernoulli"),
        (lambda: make_estimator("fedua"), "did you mean fedau"),
        (lambda: make_selection("unifrm"), "did you mean uniform"),
        (lambda: make("markov", p=[0.5], corelation=0.5), "did you mean correlation"),
        (lambda: make_estimator("fedau-nocutoff", cutoff=3), "unknown option of estimator 'fedau-nocutoff'"),
    ],
)
def test_unknown_names_get_near_matches(build: Callable[[], object], message: str) -> None:
    with pytest.raises(UnknownName, match=message):
        build()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: make("markov", p=[0.5]),
            "correlation = None: must be given for .*'markov' .*--participation-option correlation=",
        ),
        (lambda: make("bernoulli"), "either p or p_min"),
        (lambda: make("bernoulli", num_clients=2, p=0.5, p_min=0.1), "either p or p_min"),
        (lambda: make("bernoulli", p=0.5), "num_clients = None"),
        (lambda: make("bernoulli", p_min=0.5), "num_clients = None"),
        (lambda: make("bernoulli", p=[0.5, 0.5], num_clients=3), "num_clients = 3"),
        (lambda: make("bernoulli", p="often", num_clients=3), "p = "),
        (lambda: make_selection("uniform"), "m = None"),
        (lambda: make_estimator("known"), "p = None"),
        (lambda: make_estimator("fedau", max_weight=5.0), "unknown option of estimator 'fedau'"),
    ],
)
def test_bad_options_are_named(build: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        build()
