"""Known probabilities are those of the round: p_i(t) where the process changes, through the simulator's own path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from fedstale.participation import (
    Bernoulli,
    Cyclic,
    KnownProbabilities,
    Markov,
    Participation,
    Process,
    TimeVarying,
    Trace,
    UniformSample,
)
from fedstale.simulation import Simulation, build, make_settings
from fedstale.sweeps import run_batch
from tests.combinations import combinations
from tests.enumeration import participation_sets

N = 4
TABLE = {"rounds": [0, 3, 6], "values": [[1.0, 0.9, 0.5, 0.3], [0.2, 1.0, 0.7, 0.05], [0.6, 0.1, 0.3, 1.0]]}
DIURNAL = {"period": 4, "inside": [0.9, 0.5, 1.0, 0.3], "outside": [0.1, 0.2, 0.4, 0.05]}
CHANGING: list[dict[str, Any]] = [
    {"participation": "time-varying", "participation_options": TABLE},
    {"participation": "time-varying", "participation_options": TABLE | {"kind": "linear"}},
    {"participation": "cyclic", "participation_options": DIURNAL},
]


@dataclass(frozen=True, eq=False)
class These(Participation):
    """The given clients, whatever is drawn."""

    clients: tuple[int, ...] = ()

    def participants(self, seed: int, round: int, last_seen: ArrayLike | None = None) -> NDArray[np.int64]:
        return np.array(self.clients, dtype=np.int64)


def made(changes: dict[str, Any]) -> Simulation:
    common = {"task": "quadratic", "num_clients": N, "rounds": 10, "lr": 0.01, "beta": 0.5}
    return build(make_settings(**{**common, **changes}))


@pytest.mark.parametrize(("changes", "rule"), combinations(CHANGING, ["fedstale", "u-fedavg", "u-fedvarp"]))
def test_the_update_is_unbiased_in_every_round(changes: dict[str, Any], rule: str) -> None:
    changes = {**changes, "rule": rule, "beta": 0.5 if rule == "fedstale" else None}
    for t in (0, 2, 4, 7):
        first = made(changes)
        first.run(until=t)
        wanted = first.trainer.updates(first.model, np.arange(N), t).mean(axis=0)
        mean = np.zeros_like(wanted)
        for chance, clients in participation_sets(first.participation.probabilities(t)):
            one = made(changes)
            one.run(until=t)
            before = one.model.copy()
            one.participation = These(one.participation.availability, clients=tuple(clients.tolist()))
            one.step()
            mean += chance * (before - one.model)
        np.testing.assert_allclose(mean, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("options", [{"outside": [0.1, 0.0, 0.4, 0.0]}, {}], ids=["some", "all"])
def test_who_cannot_come_in_some_rounds_has_its_weight_in_the_others(options: dict[str, Any]) -> None:
    process = Cyclic.spread(N, 8, 0.25, inside=[0.9, 0.5, 1.0, 0.3], **options)
    who = Participation(process)
    weight = np.zeros(N)
    for t in range(process.period):
        p, known = who.probabilities(t), who.known(t)
        assert ((known > 0) == (p > 0)).all()
        weight += np.divide(p, known, out=np.zeros(N), where=p > 0)  # E[X_i / p_i]
    np.testing.assert_allclose(weight / process.period, 1.0)


def test_who_cannot_come_in_part_of_the_horizon() -> None:
    who = Participation(TimeVarying.table([0, 3], [[0.0, 0.5], [0.6, 0.2]], horizon=4))
    np.testing.assert_allclose(who.known(0), [0.0, 0.5])
    np.testing.assert_allclose(who.known(3), [0.6 / 4, 0.2])


def test_a_change_after_the_end_changes_nothing() -> None:
    # The last row of the table was taken for every round: everybody came and was weighted by 20.
    late = {"rounds": [0, 200], "values": [1.0, 0.05]}
    one = made({"participation": "time-varying", "participation_options": late})
    other = made({"participation": "bernoulli", "participation_options": {"p": 1.0}})
    one.run()
    other.run()
    np.testing.assert_array_equal(one.model, other.model)
    assert set(one.column("p_error")) == {0.0}


@pytest.mark.filterwarnings("ignore")
def test_lock_step_uses_the_p_of_the_round_too() -> None:
    values = [[1.0, 0.8, 0.6, 0.9, 0.7, 1.0], [0.4, 1.0, 0.9, 0.3, 1.0, 0.5]]
    one = make_settings(
        num_clients=6,
        rule="u-fedavg",
        participation="time-varying",
        rounds=4,
        lr=0.1,
        evaluate_every=1,
        participation_options={"rounds": [0, 2], "values": values},
    )
    (outcome,) = run_batch([one.record()], True)
    alone = build(one.replace(engine="loop", threads=1), progress=False)
    alone.run()
    for (t, metrics), record in zip(outcome.rows, alone.records, strict=True):
        assert metrics["p_error"] == record.metrics["p_error"] == 0.0, t
        assert metrics["update_norm"] == pytest.approx(record.metrics["update_norm"], rel=1e-4)


def schedule(t: int) -> list[float]:
    return [0.5, 0.5 / (1 + t)]


@pytest.mark.parametrize(
    ("process", "known"),
    [
        (Bernoulli([0.2, 1.0]), [[0.2, 1.0]] * 3),
        (Markov([0.2, 1.0], 0.9), [[0.2, 1.0]] * 3),
        (Cyclic([0, 1], 2, 0.5, 0.8, 0.0), [[0.4, 0.0], [0.0, 0.4], [0.4, 0.0]]),
        (TimeVarying(schedule), [[0.5, 0.5], [0.5, 0.25], [0.5, 0.5 / 3]]),
        (Trace(2, 4, [0, 1, 2], [0, 1, 1]), [[0.25, 0.5]] * 3),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_server_knows_of_each_process(process: Process, known: list[list[float]]) -> None:
    estimator = KnownProbabilities.of(Participation(process))
    state = estimator.init(2)
    for t, p in enumerate(known):
        np.testing.assert_allclose(estimator.probabilities(state, [0, 1]), p)
        estimator.observe(state, [], t)


def test_the_selection_of_the_round_is_in_it() -> None:
    estimator = KnownProbabilities.of(
        Participation(TimeVarying.table([0, 1], [[1.0, 1.0], [0.5, 1.0]]), UniformSample(1))
    )
    state = estimator.init(2)
    np.testing.assert_allclose(estimator.probabilities(state, [0, 1]), [0.5, 0.5])
    estimator.observe(state, [0], 0)
    np.testing.assert_allclose(estimator.probabilities(state, [0, 1]), [0.25, 0.75])
