"""Clients that never come: counted, said, and the objective says over whom it is; groups of a realistic log."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

import fedstale as fs
from fedstale.checks import InvalidInput
from fedstale.participation import Bernoulli, DailyMarkov, KnownProbabilities, Participation, TimeVarying, Trace
from fedstale.simulation.build import build
from fedstale.simulation.coverage import Coverage, CoverageLost
from fedstale.simulation.settings import make_settings
from fedstale.sweeps.batches import run_batch
from fedstale.tasks.data import DataUnavailable
from fedstale.tasks.phones_file import fetch_phones, phones_file
from tests.shared_data import shared_file

LOG = Trace.from_matrix(["1100", "0100", "1000", "1100"])
"""The last two never come."""


def test_who_never_comes_is_counted_and_said() -> None:
    alpha = np.array([0.1, 0.2, 0.3, 0.4])
    found = Coverage.of(Participation(LOG), alpha)
    assert found is not None
    assert found.never.tolist() == [2, 3]
    assert found.share == pytest.approx(0.3)
    assert found.alpha is not None
    np.testing.assert_allclose(found.alpha, [1 / 3, 2 / 3, 0, 0])
    assert Coverage.of(Participation(Bernoulli.uniform(4, 0.5)), alpha) is None
    with pytest.warns(CoverageLost, match="2 of 4 clients never come: coverage 50%.*over all 4 .*over the 2 that come"):
        run = fs.simulate("digits", participation=LOG, rounds=4, evaluate_every=2)
    assert run.final("coverage") == 0.5
    assert run.final("objective") != run.final("objective_covered")


def test_no_metric_is_named_that_is_not_recorded() -> None:
    with pytest.warns(CoverageLost, match="No rule learns from them. Losses are over all 4 clients$"):
        run = fs.simulate("quadratic", participation=LOG, rounds=4)
    assert not {"objective", "objective_covered"} & set(run.metrics)


def test_nothing_is_said_where_everybody_comes() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", CoverageLost)
        run = fs.simulate("digits", p_min=0.5, rounds=2)
    assert "coverage" not in run.metrics
    assert "objective_covered" not in run.metrics


def test_lock_step_records_the_same(tmp_path: Path) -> None:
    LOG.to_csv(tmp_path / "log.csv")
    settings = make_settings(
        task="digits", participation="trace", participation_options={"path": str(tmp_path / "log.csv")}, num_clients=4,
        rounds=4, rule="u-fedavg",
    )  # fmt: skip
    together = run_batch([settings.record()], lockstep=True)[0]
    alone = run_batch([settings.record()], lockstep=False)[0]
    for (t, one), (other, two) in zip(together.rows, alone.rows, strict=True):
        assert t == other
        for name in ("coverage", "objective", "objective_covered"):
            assert one[name] == pytest.approx(two[name], rel=1e-5)


def test_a_client_that_cannot_come_is_refused_when_it_does() -> None:
    known = KnownProbabilities.of(Participation(LOG))
    np.testing.assert_allclose(known.probabilities(known.init(4), np.arange(4)), [0.75, 0.75, 0, 0])
    with pytest.raises(InvalidInput, match=r"p\[1\] = 0"):
        KnownProbabilities([0.5, 0.0])
    simulation = build(make_settings(task="digits", participation=LOG, rounds=3))
    simulation.participation = Participation(Bernoulli.uniform(4, 1.0))
    with pytest.raises(InvalidInput, match="probabilities"):
        simulation.step()


def test_the_rare_half_of_a_log_has_other_labels() -> None:
    p = np.geomspace(0.05, 1.0, 24)
    simulation = build(make_settings(task="digits", participation=Bernoulli(p), rounds=1, swap=1.0))
    np.testing.assert_array_equal(simulation.trainer.task.groups, p < np.median(p))  # type: ignore[attr-defined]
    found = fs.compare("digits", "fedavg", Bernoulli(p), rounds=2, seeds=1)
    assert "frequent: 12 clients, p 0.239 to 1; rare: 12 clients, p 0.05 to 0.21" in found.summary()[-2]
    assert found.summary()[-1].startswith("The worst tenth of the clients has an accuracy of: FedAvg ")
    assert "worst tenth" in found.records()[0]


def test_finer_groups_are_recorded_and_told() -> None:
    p = np.random.default_rng(0).permutation(np.geomspace(0.05, 1.0, 24))
    found = fs.compare("digits", "fedavg,tempered,everybody", Bernoulli(p), rounds=4, seeds=1, quantiles=4)
    everybody = next(run for method, runs in found.results.items() if method.everybody for run in runs.values())
    assert {f"accuracy_quantile{k}" for k in range(1, 5)} <= set(everybody.metrics)  # the same clients as in the others
    assert "Quantiles by p: 1 (most frequent): 6 clients, p 0.521 to 1; 2: 6 clients" in found.summary()[-6]
    assert found.summary()[-2].startswith("Quantile 4 has an accuracy of: FedAvg ")
    (run,) = found.results[found.methods[0]].values()
    simulation = build(make_settings(task="digits", participation=Bernoulli(p), rounds=4, quantiles=4))
    order = np.argsort(-p).reshape(4, 6)
    for number, who in enumerate(order, 1):
        assert set(np.flatnonzero(simulation.trainer.quantiles == number)) == set(who)  # type: ignore[attr-defined]
    shares = [run.final(f"accuracy_quantile{k}") for k in range(1, 5)]
    assert min(shares) <= run.final("accuracy") <= max(shares)
    assert len(set(shares)) > 1
    loss = fs.simulate("digits", participation=Bernoulli(p), rounds=2, quantiles=3, per_client=True)
    _, accuracies = loss.per_client or ((), np.empty((0, 24)))
    sizes = fs.tasks.make("digits").test.sizes
    third = np.argsort(-p)[16:]
    expected = (accuracies[-1][third] * sizes[third]).sum() / sizes[third].sum()
    assert loss.final("accuracy_quantile3") == pytest.approx(expected)


def test_finer_groups_need_p_and_data() -> None:
    with pytest.raises(InvalidInput, match="quantiles = 2: needs clients with data"):
        fs.simulate("quadratic", num_clients=4, rounds=2, quantiles=2)
    with pytest.raises(InvalidInput, match="quantiles = 1: must be from 2 to 100"):
        fs.simulate("digits", rounds=2, quantiles=1)
    with pytest.raises(InvalidInput, match=r"quantiles = \[1, 2\]: must be a number of groups, or 24 groups from 1"):
        fs.simulate("digits", rounds=2, quantiles=[1, 2])
    task, schedule = fs.tasks.make("digits"), TimeVarying(lambda t: np.full(24, 0.5))
    with pytest.raises(InvalidInput, match="quantiles = 2: needs p_i that have a mean"):
        fs.simulate(task, participation=schedule, rounds=2, quantiles=2, probabilities="fedau")


def test_a_task_of_ones_own_is_told_by_participation() -> None:
    p = np.array([0.1, 1.0, 0.2, 0.9])
    task = fs.tasks.make("digits", num_clients=4)
    simulation = build(make_settings(task="digits", num_clients=4, participation=Bernoulli(p), rounds=1), task=task)
    np.testing.assert_array_equal(simulation.trainer.groups, [1, 0, 1, 0])  # type: ignore[attr-defined]
    own = fs.tasks.make("digits", num_clients=4, groups=[1, 1, 0, 1])
    simulation = build(make_settings(task="digits", num_clients=4, participation=Bernoulli(p), rounds=1), task=own)
    assert simulation.trainer.groups is None  # type: ignore[attr-defined]


def test_phones_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSTALE_DATA", str(tmp_path / "cache"))
    model = make_settings(participation="phones", participation_options={"kind": "model"}, num_clients=8, rounds=2)
    assert isinstance(build(model).participation.availability, DailyMarkov)
    with pytest.raises(DataUnavailable, match=r"no site has it.*--from FOLDER"):
        build(model.replace(participation_options={}))
    (tmp_path / "availability-phones.txt").write_text("10\n")
    with pytest.raises(DataUnavailable, match="SHA-256 does not begin 7179b666"):
        fetch_phones(tmp_path)
    with pytest.raises(DataUnavailable, match="there is no availability-phones"):
        fetch_phones(tmp_path / "nowhere")
    kept = fetch_phones(shared_file("availability-phones.txt").parent)
    assert kept == phones_file() == fetch_phones()
    with pytest.warns(CoverageLost):
        first = fs.simulate("digits", participation="phones", rounds=3, store=tmp_path / "store")
    assert first.reason == "finished"


@pytest.mark.parametrize("server", ["rounds", "synchronous"])
def test_a_log_that_ends_before_the_run_is_refused_at_once(server: str, tmp_path: Path) -> None:
    """It trained to the end of the log, and then failed."""
    asked = make_settings(task="digits", participation=LOG, rounds=5, server=server)
    if server != "rounds":  # there the clock says which part of the log is needed
        build(asked)
        return
    with pytest.raises(InvalidInput, match=r"^rounds = 5: the log has 4: .*repeat=True\)$"):
        build(asked)
    for run in (fs.simulate, fs.compare):
        with pytest.raises(InvalidInput, match="repeat=True"):
            run("digits", participation=LOG, rounds=5, store=tmp_path / "store")
    assert not list((tmp_path / "store" / "runs").glob("*"))
    build(make_settings(task="digits", participation=Trace.from_matrix(["1111"], repeat=True), rounds=5))


def test_a_sweep_says_so_as_well(tmp_path: Path) -> None:
    LOG.to_csv(tmp_path / "log.csv")
    options = {"path": str(tmp_path / "log.csv")}
    asked = make_settings(num_clients=4, participation="trace", participation_options=options, rounds=5)
    outcomes = run_batch([asked.record(), asked.replace(seed=1).record()], lockstep=True)
    assert [(outcome.failed, "repeat=True" in outcome.reason) for outcome in outcomes] == [(True, True)] * 2
