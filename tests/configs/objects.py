"""Random objects of every class that can be written: a strategy for each name in `configs.CLASSES`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from fedstale import beta, participation, rules, theta
from fedstale.configs import CLASSES
from fedstale.tasks.quadratic import Quadratic
from fedstale.training.local import LocalTraining

N = 3
unit = st.floats(0, 1)
inside = st.floats(0.01, 1)
positive = st.floats(1e-3, 1e3)
count = st.integers(1, 50)
seeds = st.integers(0, 9)
rates = st.sampled_from([1.0, 0.01, 0.1, 0.3])


def each(values: st.SearchStrategy[Any], size: int = N) -> st.SearchStrategy[Any]:
    """A list or an array of N of them."""
    lists = st.lists(values, min_size=size, max_size=size)
    return lists | lists.map(np.array)


betas: dict[str, st.SearchStrategy[Any]] = {
    "Constant": st.builds(beta.Constant, unit | st.integers(0, 1)),
    "Schedule": st.builds(beta.Schedule, st.dictionaries(st.integers(0, 99), unit, min_size=1, max_size=3)),
    "Auto": st.builds(beta.Auto, inside, unit),
    "AutoPerClient": st.builds(beta.AutoPerClient, inside, unit, positive),
    "Theory": st.builds(beta.Theory, drift=unit, start=unit)
    | st.builds(beta.Theory, sigma2_over_K=positive, sigma_g2=positive),
}
table = st.dictionaries(st.integers(0, 99), unit, min_size=1, max_size=3)
any_beta = unit | st.sampled_from(["auto", "auto-per-client", "theory", "0.5"]) | table | st.one_of(*betas.values())

thetas: dict[str, st.SearchStrategy[Any]] = {
    "ConstantTheta": st.builds(theta.ConstantTheta, unit),
    "AutoTheta": st.builds(theta.AutoTheta, unit, count),
}
common_beta = unit | st.sampled_from(["auto", "theory", "0.5"]) | table | betas["Auto"] | betas["Theory"]

options: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "FedStale": {"beta": any_beta},
    "UnbiasedFedVARP": {"beta": any_beta},
    "TemperedFedStale": {
        "beta": common_beta,
        "theta": unit | st.sampled_from(["auto", "0.5"]) | st.one_of(*thetas.values()),
        "refresh": unit,
        "self_normalised": st.booleans(),
    },
    "FedSteer": {"core": count, "ridge": positive},
    "UnbiasedFedSteer": {"core": count, "ridge": positive},
    "CAFed": {"bias_weight": positive},
    "FedAMD": {"anchors": inside, "seed": seeds},
    "FedAU": {"cutoff": st.none() | count},
    "FedLaAvg": {"m": st.none() | count},
    "AFACD": {"max_delay": st.integers(0, 5), "seed": seeds},
    "AFACS": {"max_delay": st.integers(0, 5), "seed": seeds},
    "FedAsync": {"mixing": inside, "exponent": unit, "prox": unit},
    "FedBuff": {"exponent": unit},
    "UnbiasedFedBuff": {"exponent": unit},
    "ACED": {"max_age": count},
    "FedStaleAsync": {"beta": common_beta, "half_life": positive},
    "Scaffold": {"option": st.sampled_from(["I", "II"])},
    "SVRG": {"period": count},
    "SCSG": {"period": count, "share": inside, "seed": seeds},
    "SARAH": {"period": count},
    "SPIDER": {"period": count, "share": inside, "clip": positive},
    "FedProx": {"mu": unit},
    "FedDyn": {"a": positive},
}
plain_rules: dict[str, st.SearchStrategy[Any]] = {
    kind.__name__: st.builds(kind, server_lr=rates, **options.get(kind.__name__, {})) for kind in rules.RULES.values()
}
plain = st.one_of(*plain_rules.values())


@st.composite
def wrapped(draw: st.DrawFn, optimizer: str | None, guarded: bool) -> rules.Rule:
    """A rule in a server optimiser, in bounds, in both, in either order."""
    rule: rules.Rule = draw(plain)
    layers = ["guard"] * guarded + [optimizer] * (optimizer is not None)
    for layer in draw(st.permutations(layers)):
        if layer == "guard":
            cannot_clip = isinstance(rule, (rules.Anchored, rules.FedAMD, rules.Scaffold))
            cannot_clip |= isinstance(getattr(rule, "rule", rule), (rules.Anchored, rules.FedAMD, rules.Scaffold))
            learns = isinstance(getattr(rule, "rule", rule), rules.FedAU)
            clip = None if cannot_clip else draw(st.none() | positive)
            cap = None if learns else draw(st.none() | st.floats(1, 100))
            rule = rules.Guarded(rule, clip_norm=clip, max_weight=cap)
        else:
            given = {"server_lr": draw(rates), "beta1": draw(unit)}
            if layer != "momentum":
                given["tau"] = draw(positive)
            if layer in ("adam", "yogi"):
                given["beta2"] = draw(unit)
            rule = rules.OPTIMIZERS[str(layer)](rule, **given)
    return rule


made_robust = st.builds(
    rules.Robust,
    plain.filter(lambda rule: not isinstance(rule, (rules.Anchored, rules.FedAMD, rules.Scaffold))),
    method=st.sampled_from(["median", "trimmed", "norms"]),
    trim=st.floats(0, 0.4),
    ratio=st.floats(1, 9),
)
wrappers: dict[str, st.SearchStrategy[Any]] = {
    "Robust": made_robust,
    "Guarded": wrapped(None, guarded=True) | wrapped("adam", guarded=True),
    **{kind.__name__: wrapped(name, False) | wrapped(name, True) for name, kind in rules.OPTIMIZERS.items()},
}
any_rule = plain | st.one_of(*wrappers.values())

estimators: dict[str, st.SearchStrategy[Any]] = {
    "KnownProbabilities": st.builds(participation.KnownProbabilities, inside | each(inside)),
    "FedAUEstimator": st.builds(participation.FedAUEstimator, st.none() | count),
    "BetaFrequency": st.builds(participation.BetaFrequency, positive, positive),
    "DailyFrequency": st.builds(
        participation.DailyFrequency, st.integers(9, 48), st.integers(1, 9), positive, positive
    ),
    "Forgetting": st.builds(participation.Forgetting, st.floats(0.1, 0.99), positive, positive),
}

labels = st.none() | each(st.integers(0, 2))
breakpoints = st.builds(
    participation.Breakpoints,
    st.just([0, 7]),
    st.lists(st.lists(inside, min_size=N, max_size=N), min_size=2, max_size=2),
    st.sampled_from(["constant", "linear"]),
)


def make_trace(pairs: list[tuple[int, int]], repeat: bool) -> participation.Trace:
    rounds, clients = [t for t, _ in pairs], [i for _, i in pairs]
    return participation.Trace(N, 8, rounds, clients, repeat)


def make_matrix(cells: str) -> participation.Trace:
    rows = [cells[k : k + N] for k in range(0, len(cells), N)]
    trace = participation.Trace.from_matrix(rows, names=[f"phone-{k}" for k in range(N)])
    return replace(trace, round_seconds=43_200.0)


matrices = st.text("01?", min_size=4 * N, max_size=4 * N).map(make_matrix)
processes: dict[str, st.SearchStrategy[Any]] = {
    "Bernoulli": st.builds(participation.Bernoulli, each(inside), labels=labels)
    | st.builds(participation.Bernoulli.two_groups, st.integers(1, 6), inside),
    "Markov": st.builds(participation.Markov, each(inside), st.floats(0, 0.9) | each(st.floats(0, 0.9)), labels=labels),
    "Correlated": st.builds(participation.Correlated, each(inside), unit, labels, labels=labels),
    "Cyclic": st.builds(participation.Cyclic, each(st.integers(0, 9)), count, inside, inside, unit | each(unit)),
    "TimeVarying": st.builds(participation.TimeVarying, breakpoints, st.none() | count),
    "Trace": st.builds(make_trace, st.lists(st.tuples(st.integers(0, 7), st.integers(0, N - 1))), st.booleans())
    | matrices,
    "Bootstrap": st.builds(participation.Bootstrap, matrices, each(st.integers(0, N - 1), 5), st.none() | st.just(2)),
    "DailyMarkov": st.builds(participation.DailyMarkov, each(inside), each(inside, 4), st.floats(0, 0.9)),
}
selections: dict[str, st.SearchStrategy[Any]] = {
    "All": st.just(participation.All()),
    "UniformSample": st.builds(participation.UniformSample, count),
    "Fraction": st.builds(participation.Fraction, inside),
    "LeastRecent": st.builds(participation.LeastRecent, count),
}
others: dict[str, st.SearchStrategy[Any]] = {
    "Breakpoints": breakpoints,
    "Participation": st.builds(
        participation.Participation, st.one_of(*processes.values()), st.one_of(*selections.values())
    ),
    "Quadratic": st.builds(Quadratic.random, count, st.integers(1, 4), seeds) | st.builds(Quadratic.figure1),
    "LocalTraining": st.builds(
        LocalTraining, positive, st.none() | count, batch_size=count, momentum=st.floats(0, 0.9), weight_decay=unit
    ),
}
every = plain_rules | wrappers | betas | thetas | estimators | processes | selections | others
missing = CLASSES.keys() - every.keys()
