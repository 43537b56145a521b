"""A run is stored whole and goes on with the same bits; of what could not be written, it says so."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import fedstale as fs
from fedstale.beta import Auto, AutoPerClient
from fedstale.checks import InvalidInput
from fedstale.cli.app import app
from fedstale.configs import same
from fedstale.participation import (
    Bernoulli,
    BetaFrequency,
    Bootstrap,
    Correlated,
    Cyclic,
    DailyMarkov,
    FedAUEstimator,
    KnownProbabilities,
    LeastRecent,
    Markov,
    Participation,
    TimeVarying,
    Trace,
    UniformSample,
)
from fedstale.rules import SCSG, Guarded, ServerAdam
from fedstale.simulation import Callback, Record, Simulation, from_toml, make_settings, to_toml
from fedstale.simulation.build import make_estimator, make_participation, make_rule, make_task
from fedstale.simulation.identity import finished, identity
from fedstale.store import Store
from fedstale.tasks import Quadratic

P = [1.0, 0.5, 0.3]
SMALL: dict[str, Any] = {"task": "quadratic", "num_clients": 3, "rounds": 30, "lr": 0.02, "seed": 5}
RULES: list[fs.Rule] = [
    fs.FedStale(beta={0: 0, 10: 1}),
    fs.FedStale(beta=Auto(forget=0.9)),
    fs.FedStale(beta=AutoPerClient(prior=2.0)),
    ServerAdam(Guarded(fs.FedStale(), clip_norm=0.5)),
    ServerAdam(fs.FedStale(beta=0.3), server_lr=1.0),
    SCSG(seed=3),
]
PROCESSES: list[Any] = [
    Markov(P, 0.5),
    Participation(Correlated(P, 0.4), LeastRecent(2)),
    Participation(Bernoulli(P), UniformSample(2)),
    Cyclic.spread(3, 7),
    TimeVarying.table([0, 15], [[1.0, 0.2, 0.5], [0.3, 0.9, 0.5]]),
    Trace.record(Bernoulli(P), 1, 30),
    Bootstrap(Trace.from_matrix(["11?", "0?1", "101", "110"]), [0, 1, 2], 2),
    DailyMarkov(P, [0.5, 1.0, 1.5], 0.6),
    Bernoulli.two_groups(3, 0.4),
]


@dataclass(frozen=True, kw_only=True)
class OwnRule(fs.UnbiasedFedAvg):
    """A rule that the library does not know."""

    scale: float = 0.5

    def update(self, state: Any, round: Any) -> Any:
        return self.scale * super().update(state, round)


class Cut(Callback):
    def on_round(self, simulation: Simulation, record: Record) -> None:
        if record.round == 12:
            raise KeyboardInterrupt


def cut(folder: Path, **given: Any) -> str:
    """Begin a run that is interrupted, and return its id."""
    with pytest.raises(KeyboardInterrupt):
        fs.simulate(**{**SMALL, **given}, store=folder, callbacks=[Cut()])
    with Store.open(folder) as store:
        (info,) = store.runs()
        assert info.status == "interrupted"
        return info.id


def equal(one: Any, other: Any) -> None:
    """Same participants, same bits, all rounds."""
    assert [who.tolist() for who in one.participants] == [who.tolist() for who in other.participants]
    for name in one.metrics.keys() - {"seconds"}:
        assert np.array_equal(one.metrics[name], other.metrics[name], equal_nan=True), name
    assert one.model.tobytes() == other.model.tobytes()
    assert one.label == other.label


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_a_rule_goes_on_as_it_began(rule: fs.Rule, tmp_path: Path) -> None:
    whole = fs.simulate(**SMALL, rule=rule)
    equal(fs.resume(cut(tmp_path, rule=rule), store=tmp_path), whole)


@pytest.mark.parametrize("process", PROCESSES, ids=lambda one: type(getattr(one, "availability", one)).__name__)
def test_who_comes_goes_on_as_it_began(process: Any, tmp_path: Path) -> None:
    given = {"rule": "fedstale", "participation": process, "probabilities": FedAUEstimator(9)}
    whole = fs.simulate(**SMALL, **given)
    run = cut(tmp_path, **given)
    result = CliRunner().invoke(app, ["resume", run, "--store", str(tmp_path), "--json"])
    assert result.exit_code == 0, result.output
    with Store.open(tmp_path) as store:
        came = store.run(run).participants()
        assert [came[t].tolist() for t in range(30)] == [who.tolist() for who in whole.participants]
        assert (
            store.run(run).metrics(["update_norm"])["update_norm"].tobytes() == whole.metrics["update_norm"].tobytes()
        )


def test_what_is_stored_makes_the_objects_again(tmp_path: Path) -> None:
    problem = Quadratic.random(3, 2, 9)
    process = Participation(Markov(P, 0.5), UniformSample(2))
    fs.simulate(problem, ServerAdam(SCSG()), process, probabilities=BetaFrequency(2.0, 3.0), rounds=3, store=tmp_path)
    with Store.open(tmp_path) as store:
        chosen = make_settings(**store.runs()[0].config)
    assert same(make_participation(chosen), process)
    assert same(make_task(chosen, process), problem)
    assert same(make_estimator(chosen, process), BetaFrequency(2.0, 3.0))
    assert make_rule(chosen) == ServerAdam(SCSG())
    assert chosen.num_clients == 3
    assert chosen.p_min == 0.3


def test_toml_keeps_nested_configs(tmp_path: Path) -> None:
    chosen = make_settings(
        task=Quadratic.random(3, 2, 9),
        rule=Guarded(ServerAdam(fs.FedStale(beta=Auto(forget=0.9)), server_lr=1.0), clip_norm=2.0),
        participation=Participation(Markov(P, [0.1, 0.2, 0.3]), UniformSample(2)),
        probabilities=KnownProbabilities(P),
        rounds=9,
    )
    (tmp_path / "run.toml").write_text(to_toml(chosen), encoding="utf-8")
    assert from_toml(tmp_path / "run.toml") == chosen
    written = (
        'rule = "fedstale"\nbeta = {0 = 0.0, 10 = 1.0}\nparticipation = {class = "Cyclic", phases = [0, 3], period = 7}'
    )
    (tmp_path / "own.toml").write_text(written)
    own = from_toml(tmp_path / "own.toml")
    assert make_rule(own) == fs.FedStale(beta={0: 0.0, 10: 1.0})
    assert same(make_participation(own).availability, Cyclic([0, 3], 7))
    assert own.label == "FedStale β={0: 0, 10: 1}"
    again = from_toml(tmp_path / "own.toml", rule={"class": "FedStale", "beta": {"0": 0.0, "10": 1.0}}, beta=None)
    assert again == own


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rule": fs.FedStale(beta=0.3), "beta": 0.5}, r"beta = 0.5: conflicts with the rule, which sets it to 0.3"),
        (
            {"rule": Guarded(fs.FedStale(), clip_norm=1.0), "clip_norm": 2.0},
            "clip_norm = 2.0: conflicts with the rule, which sets it to 1",
        ),
        (
            {"rule": ServerAdam(server_lr=1.0), "rule_options": {"tau": 0.1}},
            "rule_options = .*: cannot be combined with rule",
        ),
        ({"rule": {"class": "All"}}, "rule = 'All.*': must be a rule such as FedStale"),
        ({"rule": {"class": "FedStal"}}, "unknown class in rule 'FedStal': did you mean FedStale"),
        ({"beta": {"0": 2.0}}, "beta of round 0 = 2.0"),
        ({"participation": Bernoulli.two_groups(4, 0.2), "num_clients": 3}, "4 clients.: the task has 3"),
        (
            {"participation": Markov(P, 0.5), "participation_options": {"share": 0.1}},
            "cannot be combined with participation",
        ),
    ],
)
def test_one_thing_is_not_said_twice_in_two_ways(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        make_settings(**given)


def test_settings_around_an_object_count(tmp_path: Path) -> None:
    assert make_rule(make_settings(rule=fs.FedStale(), clip_norm=2.0)) == Guarded(fs.FedStale(), clip_norm=2.0)
    chosen = make_settings(participation=Markov(P, 0.5), selection="uniform", selection_options={"m": 2})
    assert same(make_participation(chosen), Participation(Markov(P, 0.5), UniformSample(2)))


def test_by_name_and_as_object_it_is_one_run(tmp_path: Path) -> None:
    names = make_settings(**SMALL, rule="fedstale", beta="auto")
    objects = make_settings(**SMALL, rule=fs.FedStale(beta="auto"), participation=Bernoulli.two_groups(3, 0.1))
    assert identity(names.record()) == identity(objects.record())
    assert identity(names.record()) == identity(make_settings(**SMALL, beta="auto").record())
    assert identity(make_settings(**SMALL).record()) == identity(
        make_settings(**SMALL, rule=fs.TemperedFedStale()).record()
    )
    others = [
        make_settings(**SMALL, rule=rule, participation=process)
        for rule in (fs.FedStale(), *RULES)
        for process in (Bernoulli.two_groups(3, 0.1), Markov(P, 0.5))
    ]
    assert len({identity(one.record()) for one in others}) == len(others)


OWN: dict[str, Any] = {
    "rule": OwnRule(scale=0.25),
    "participation": TimeVarying(lambda t: np.array([1.0, 0.5, 0.2 + 0.01 * t]), 30),
}


def test_what_was_not_written_must_be_given_again(tmp_path: Path) -> None:
    whole = fs.simulate(**SMALL, **OWN)
    run = cut(tmp_path, **OWN)
    with pytest.raises(
        InvalidInput,
        match=r"rule = .*OwnRule.*: was not saved with the run: pass the object again, resume\(run, rule=…\)",
    ):
        fs.resume(run, store=tmp_path)
    with pytest.raises(InvalidInput, match=r"participation = .*<lambda>.*resume\(run, participation=…\)"):
        fs.resume(run, store=tmp_path, rule=OWN["rule"])
    for wrong in (OwnRule(scale=0.5), fs.FedAvg()):
        with pytest.raises(InvalidInput, match=r"the run was made with OwnRule\(.*scale=0.25\)"):
            fs.resume(run, store=tmp_path, **{**OWN, "rule": wrong})
    with pytest.raises(InvalidInput, match="the run was made with"):
        fs.resume(run, store=tmp_path, **{**OWN, "participation": Markov(P, 0.5)})
    said = CliRunner().invoke(app, ["resume", run, "--store", str(tmp_path)])
    assert isinstance(said.exception, InvalidInput)
    assert "pass the object again, resume(run, rule=…)" in str(said.exception)
    with Store.open(tmp_path) as store:
        assert store.runs()[0].status == "interrupted"  # nothing was touched
    equal(fs.resume(run, store=tmp_path, **OWN), whole)


def test_an_object_that_contradicts_the_record_is_refused(tmp_path: Path) -> None:
    run = cut(tmp_path, rule="fedstale", beta=0.5)
    for wrong, message in (
        ({"rule": fs.FedStale(beta=0.3)}, "the run was made with FedStale β=0.5"),
        ({"participation": Markov(P, 0.5)}, "the run was made with Participation"),
        ({"task": Quadratic.random(3, 10, 6)}, "the run was made with Quadratic"),
        ({"probabilities": FedAUEstimator()}, "the run was made with KnownProbabilities"),
    ):
        with pytest.raises(InvalidInput, match=message):
            fs.resume(run, store=tmp_path, **wrong)
    same_again: dict[str, Any] = {"rule": fs.FedStale(beta=0.5), "task": Quadratic.random(3, 10, 5)}
    whole = fs.simulate(**SMALL, beta=0.5)
    equal(fs.resume(run, store=tmp_path, participation=Bernoulli.two_groups(3, 0.1), **same_again), whole)


def test_a_run_that_was_not_written_whole_is_nobody_elses(tmp_path: Path) -> None:
    fs.simulate(**SMALL, rule=OWN["rule"], store=tmp_path)
    chosen = make_settings(**SMALL, rule=OWN["rule"])
    assert chosen.unwritten == {"rule": f"{__name__}.OwnRule"}
    with Store.open(tmp_path) as store:
        (info,) = store.runs()
        assert info.name == "OwnRule(server_lr=1.0, scale=0.25)"
        assert json.loads(json.dumps(info.config["rule"]))["values"] == {"server_lr": 1.0, "scale": 0.25}
        assert finished(store) == {}


def test_a_task_of_ones_own_is_recognised_by_its_data(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from fedstale.tasks import Task

    def task(first: float) -> Task:
        x = torch.arange(24.0).view(12, 2) / 24
        x[0, 0] = first
        data = [(x[k : k + 4], torch.tensor([0, 1, 0, 1])) for k in (0, 4, 8)]
        return Task.from_datasets(lambda: torch.nn.Linear(2, 2), torch.nn.functional.cross_entropy, data, data)

    given: dict[str, Any] = {"task": task(0.5), "participation": Bernoulli(P), "batch_size": 2, "engine": "loop"}
    whole = fs.simulate(**{**SMALL, **given, "threads": 1})
    run = cut(tmp_path, **given, threads=1)
    with pytest.raises(InvalidInput, match=r"resume\(run, task=…\)"):
        fs.resume(run, store=tmp_path)
    with pytest.raises(InvalidInput, match="the run was made with own"):
        fs.resume(run, store=tmp_path, task=task(0.25))
    equal(fs.resume(run, store=tmp_path, task=task(0.5)), whole)


def test_run_resume_finds_a_run_in_other_words(tmp_path: Path) -> None:
    fs.simulate(**SMALL, rule=fs.FedStale(beta=0.5), store=tmp_path)
    fs.simulate(**SMALL, rule=fs.FedStale(beta={0: 0, 10: 1}), store=tmp_path)
    words = [
        "run",
        "quadratic",
        "--num-clients",
        "3",
        "--rounds",
        "30",
        "--lr",
        "0.02",
        "--seed",
        "5",
        "--resume",
        "-q",
    ]
    for beta in ("0.5", '{"0": 0, "10": 1}', '{"class": "Schedule", "points": {"0": 0, "10": 1}}'):
        said = CliRunner().invoke(app, [*words, "--store", str(tmp_path), "--beta", beta])
        assert said.exit_code == 0, said.output
        assert "is finished" in said.output
    with Store.open(tmp_path) as store:
        assert len(store.runs()) == 2
