"""Every method against a few lines written straight from its formula: 30 rounds on random quadratics, 1e-9.

The references share no code with the library: they have their own local training and their own state. What they are
told is who came in which round, and the random draws that a method is defined by (delays, lengths of epochs).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fedstale as fs
from fedstale import rules
from fedstale.participation import Bernoulli, KnownProbabilities, Participation
from fedstale.randomness import generator
from fedstale.simulation import Simulation
from fedstale.simulation.trainers import QuadraticTrainer
from fedstale.tasks.quadratic import Quadratic

Array = NDArray[np.float64]
Sets = list[NDArray[np.int64]]
Reference = Callable[[Sets], list[Array]]

N, D, K, LR, ROUNDS = 5, 4, 3, 0.1, 30
P = np.array([0.5, 0.6, 0.5, 0.4, 0.3])
ALPHA = np.array([0.3, 0.1, 0.25, 0.15, 0.2])
PROBLEM = Quadratic.random(N, D, 3)
A, C = PROBLEM.matrices, PROBLEM.optima
START = np.linspace(-2, 2, D)


def train(i: int, w: Array, steps: int = K, shift: Array | float = 0.0, mu: float = 0.0) -> Array:
    """Δ_i of plain gradient steps on client i."""
    x = w.copy()
    for _ in range(steps):
        x = x - LR * (A[i] @ (x - C[i]) + shift + mu * (x - w))
    return w - x


def mean(values: dict[int, Array]) -> Array:
    """Average those who came, by α."""
    if not values:
        return np.zeros(D)
    total = sum(ALPHA[i] for i in values)
    return np.asarray(sum(ALPHA[i] / total * values[i] for i in values))


def rounds(sets: Sets, one: Callable[[int, Array, NDArray[np.int64]], Array], rate: float = 1.0) -> list[Array]:
    """w_1, w_2, … where `one` gives Δ of a round."""
    w, models = START.copy(), []
    for t, came in enumerate(sets):
        w = w - rate * one(t, w, came)
        models.append(w.copy())
    return models


def fedavg(sets: Sets) -> list[Array]:
    return rounds(sets, lambda t, w, came: mean({i: train(i, w) for i in came}))


def u_fedavg(sets: Sets) -> list[Array]:
    return rounds(sets, lambda t, w, came: sum((ALPHA[i] / P[i] * train(i, w) for i in came), np.zeros(D)))


def fedvarp(sets: Sets) -> list[Array]:
    h = np.zeros((N, D))

    def one(t: int, w: Array, came: NDArray[np.int64]) -> Array:
        fresh = {int(i): train(i, w) for i in came}
        delta = ALPHA @ h + mean({i: fresh[i] - h[i] for i in fresh})
        for i in fresh:
            h[i] = fresh[i]
        return np.asarray(delta)

    return rounds(sets, one)


def fedstale(beta: float) -> Reference:
    def reference(sets: Sets) -> list[Array]:
        h = np.zeros((N, D))

        def one(t: int, w: Array, came: NDArray[np.int64]) -> Array:
            fresh = {int(i): train(i, w) for i in came}
            delta = beta * ALPHA @ h
            for i in fresh:
                delta = delta + ALPHA[i] / P[i] * (fresh[i] - beta * h[i])
            for i in fresh:
                h[i] = fresh[i]
            return np.asarray(delta)

        return rounds(sets, one)

    return reference


def tempered(theta: float | None, beta: float, refresh: float, normalised: bool = False) -> Reference:
    """θ = None is "auto": the least of five costs, each the growth of a sum of biases plus the noise."""

    def reference(sets: Sets) -> list[Array]:
        m, visits, grid = np.zeros((N, D)), np.zeros(N), (0.0, 0.25, 0.5, 0.75, 1.0)
        cost = {k: [0.0, 0.0] for k in grid}
        past, away = {k: np.zeros(D) for k in grid}, [0.0, 0.0]

        def one(t: int, w: Array, came: NDArray[np.int64]) -> Array:
            fresh = {int(i): train(i, w) for i in came}
            if theta is None:
                used = min(grid, key=lambda k: max(cost[k][0], 0) + cost[k][1]) if cost[0.0][1] > 0 else 0.5
            else:
                used = theta
            weights = {i: ALPHA[i] / P[i] ** used for i in fresh}
            new, absent = [i for i in fresh if not visits[i]], sum(ALPHA[i] for i in range(N) if not visits[i])
            total = sum(weights.values()) if normalised else 1.0
            delta = beta * ALPHA @ m
            if new and not normalised:
                weights |= {i: absent * ALPHA[i] / P[i] / sum(ALPHA[j] / P[j] for j in new) for i in new}
            elif visits.any() and not normalised:
                delta = delta / (1 - absent)
            for i in fresh:
                delta = delta + weights[i] / total * (fresh[i] - beta * m[i])
            again = [i for i in fresh if visits[i]]
            away[0] += sum((1 - P[i]) / P[i] ** 2 for i in again)
            away[1] += sum((1 - P[i]) / P[i] for i in again)
            for k in grid:
                bias = np.zeros(D)
                for i in again:
                    e = fresh[i] - beta * m[i]
                    bias = bias + ALPHA[i] / P[i] * (1 - P[i] ** (1 - k)) * e
                    cost[k][1] += (t + 1) * ALPHA[i] ** 2 * (1 - P[i]) * P[i] ** (-2 * k) * float(e @ e)
                cost[k][0] += (t + 1) * 2 * float(bias @ past[k])
                past[k] = bias + (past[k] * (1 - away[1] / away[0]) if away[0] else 0.0)
            for i in fresh:
                visits[i] += 1
                m[i] += max(1 / visits[i], refresh) * (fresh[i] - m[i])
            return np.asarray(delta)

        return rounds(sets, one)

    return reference


def fedsteer(core: int, ridge: float, first: bool) -> Reference:
    """The ridge fit as least squares of a problem with as many more rows as there are directions."""

    def reference(sets: Sets) -> list[Array]:
        q: dict[int, Array] = {}
        s: dict[int, dict[int, float]] = {i: {} for i in range(N)}

        def one(t: int, w: Array, came: NDArray[np.int64]) -> Array:
            fresh, fitted = {int(i): train(i, w) for i in came}, dict(s)
            for i in fresh if q else ():
                units = np.array([q[j] / np.linalg.norm(q[j]) for j in q]).T
                system = np.vstack([units, np.sqrt(ridge) * np.eye(len(q))])
                size = float(np.linalg.norm(fresh[i]))
                found = np.linalg.lstsq(system, np.append(fresh[i] / size, np.zeros(len(q))))[0]
                fitted[i] = {j: size * c / float(np.linalg.norm(q[j])) for j, c in zip(q, found, strict=True)}
            x = [sum((c * q[j] for j, c in own.items()), np.zeros(D)) for own in (fitted if first else s).values()]
            delta = sum((ALPHA[i] * x[i] for i in range(N)), np.zeros(D))
            delta = delta + sum((ALPHA[i] / P[i] * (fresh[i] - x[i]) for i in fresh), np.zeros(D))
            s.update(fitted)
            for i in fresh:
                if i in q or len(q) < core:
                    q[i] = fresh[i]
            return delta

        return rounds(sets, one)

    return reference


def cafed(kappa: float) -> Reference:
    """The trade-off from its definition, every time for all clients."""

    def reference(sets: Sets) -> list[Array]:
        came_in: list[list[int]] = []
        error: dict[int, float] = {}

        def bound(kept: list[int], e: Array) -> float:
            q = np.array([ALPHA[i] if i in kept else 0.0 for i in range(N)])
            q = q / q.sum()
            return float(q @ e + kappa * (np.abs(ALPHA - q).sum() / 2) ** 2 * max(error.values()))

        def one(t: int, w: Array, came: NDArray[np.int64]) -> Array:
            fresh = {int(i): train(i, w) for i in came}
            came_in.append(list(fresh))
            error.update({i: float(fresh[i] @ fresh[i]) for i in fresh})
            if not error:
                return np.zeros(D)
            e = np.array([error.get(i, float(np.mean(list(error.values())))) for i in range(N)])
            here = np.array([[float(i in some) for some in came_in] for i in range(N)])
            share = here.mean(1)
            both = (here[:, 1:] * here[:, :-1]).sum(1) / max(t, 1)
            runs = [abs((b - s * s) / (s * (1 - s))) if 0 < s < 1 else 0.0 for b, s in zip(both, share, strict=True)]
            kept = list(range(N))
            for order in (sorted(range(N), key=lambda i: -runs[i]), sorted(range(N), key=lambda i: share[i])):
                for i in order:
                    rest = [j for j in kept if j != i]
                    if i in kept and rest and bound(rest, e) < bound(kept, e):
                        kept = rest
            return sum((ALPHA[i] / P[i] * fresh[i] for i in fresh if i in kept), np.zeros(D))

        return rounds(sets, one)

    return reference


def fedau(cutoff: int) -> Reference:
    def reference(sets: Sets) -> list[Array]:
        gap = [0] * N
        past: list[list[int]] = [[] for _ in range(N)]

        def one(t: int, w: Array, came: NDArray[np.int64]) -> Array:
            delta = np.zeros(D)
            for i in range(N):
                if i in came:
                    omega = sum(past[i]) / len(past[i]) if past[i] else 1.0
                    delta = delta + ALPHA[i] * omega * train(i, w)
                    past[i].append(gap[i] + 1)
                    gap[i] = 0
                else:
                    gap[i] += 1
                    if gap[i] == cutoff:
                        past[i].append(cutoff)
                        gap[i] = 0
            return delta

        return rounds(sets, one)

    return reference


def mifa(wait: bool) -> Reference:
    def reference(sets: Sets) -> list[Array]:
        h: dict[int, Array] = {}

        def one(t: int, w: Array, came: NDArray[np.int64]) -> Array:
            h.update({int(i): train(i, w) for i in came})
            if wait and len(h) < N:
                return np.zeros(D)
            return sum((ALPHA[i] * h[i] for i in h), np.zeros(D))

        return rounds(sets, one)

    return reference


def fedlaavg(sets: Sets) -> list[Array]:
    last, average = np.zeros((N, D)), np.zeros(D)

    def one(t: int, w: Array, came: NDArray[np.int64]) -> Array:
        nonlocal average
        for i in came:
            sent = train(i, w) - last[i]
            last[i] = last[i] + sent
            average = average + ALPHA[i] * sent
        return average

    return rounds(sets, one)


def fedawe(eta: float) -> Reference:
    """Written with models, as in the paper's Algorithm 1."""

    def reference(sets: Sets) -> list[Array]:
        own, last = np.tile(START, (N, 1)), np.full(N, -1)

        def one(t: int, w: Array, came: NDArray[np.int64]) -> Array:
            if not len(came):
                return np.zeros(D)
            new = mean({int(i): own[i] - eta * (t - last[i]) * train(i, own[i]) for i in came})
            own[came], last[came] = new, t
            return (w - new) / eta

        return rounds(sets, one, eta)

    return reference


def anarchic(silo: bool) -> Reference:
    def reference(sets: Sets) -> list[Array]:
        models: list[Array] = []
        latest = np.zeros((N, D))

        def one(t: int, w: Array, came: NDArray[np.int64]) -> Array:
            models.append(w)
            fresh = {}
            for i in came:
                delay = int(generator(7, "delay", t, int(i)).integers(min(4, t) + 1))
                fresh[int(i)] = latest[i] = train(i, models[t - delay])
            return ALPHA @ latest if silo else mean(fresh)

        return rounds(sets, one)

    return reference


def scaffold(option: str) -> Reference:
    def reference(sets: Sets) -> list[Array]:
        c, own = np.zeros(D), np.zeros((N, D))

        def one(t: int, w: Array, came: NDArray[np.int64]) -> Array:
            nonlocal c
            fresh, new = {}, {}
            for i in came:
                fresh[int(i)] = train(i, w, shift=c - own[i])
                new[int(i)] = A[i] @ (w - C[i]) if option == "I" else own[i] - c + fresh[int(i)] / (K * LR)
            c = c + sum((ALPHA[i] * (new[i] - own[i]) for i in new), np.zeros(D))
            for i in new:
                own[i] = new[i]
            return mean(fresh)

        return rounds(sets, one)

    return reference


def fedamd(q: float) -> Reference:
    def reference(sets: Sets) -> list[Array]:
        anchors: dict[int, Array] = {}

        def one(t: int, w: Array, came: NDArray[np.int64]) -> Array:
            total = sum(ALPHA[i] for i in anchors)
            v = sum((ALPHA[i] / total * anchors[i] for i in anchors), np.zeros(D))
            first, mined = not anchors, {}
            for i in map(int, came):
                if first or generator(7, "fedamd anchors", t, i).random() < q:
                    anchors[i] = A[i] @ (w - C[i])
                    continue
                before, x, g = w, w, v
                for k in range(K):
                    g = g + A[i] @ (x - before) if k else g
                    before, x = x, x - LR * g
                mined[i] = w - x
            return mean(mined)

        return rounds(sets, one)

    return reference


def anchored(recursive: bool, need: int, length: Callable[[int], int], clip: float = np.inf) -> Reference:
    def reference(sets: Sets) -> list[Array]:
        got: dict[int, Array] = {}
        left, v, anchor = 0, np.zeros(D), START

        def one(t: int, w: Array, came: NDArray[np.int64]) -> Array:
            nonlocal left, v, anchor
            if left == 0:
                for i in came:
                    got.setdefault(int(i), train(i, w))
                if len(got) < need:
                    return np.zeros(D)
                v, anchor, left = mean(got), w, length(t)
                got.clear()
                delta = v
            else:
                left -= 1
                delta = v + mean({int(i): train(i, w) - train(i, anchor) for i in came})
                if recursive:
                    v, anchor = delta, w if len(came) else anchor
            return delta * min(1.0, clip / max(float(np.linalg.norm(delta)), 1e-300))

        return rounds(sets, one)

    return reference


def fedprox(sets: Sets) -> list[Array]:
    return rounds(sets, lambda t, w, came: mean({i: train(i, w, mu=0.7) for i in came}))


def feddyn(sets: Sets) -> list[Array]:
    """The paper's θ = mean θ_i − h/a with h ← h − a Σ α_i (θ_i − θ): written with models, not with updates."""
    a, h, dual = 2.0, np.zeros(D), np.zeros((N, D))

    def one(t: int, w: Array, came: NDArray[np.int64]) -> Array:
        nonlocal h
        local = {int(i): w - train(i, w, shift=-dual[i], mu=a) for i in came}  # θ_i
        for i in local:
            dual[i] -= a * (local[i] - w)
            h = h - a * ALPHA[i] * (local[i] - w)
        theta = (w - mean({i: w - local[i] for i in local})) - h / a
        return w - theta

    return rounds(sets, one)


def optimized(kind: str, rate: float) -> Reference:
    """FedStale(0.5) under a server optimiser: Algorithm 2 of Reddi et al., FedAvgM for momentum."""

    def reference(sets: Sets) -> list[Array]:
        h, m, v = np.zeros((N, D)), np.zeros(D), np.full(D, 1e-6)

        def one(t: int, w: Array, came: NDArray[np.int64]) -> Array:
            nonlocal m, v
            fresh = {int(i): train(i, w) for i in came}
            delta = 0.5 * ALPHA @ h + sum((ALPHA[i] / P[i] * (fresh[i] - 0.5 * h[i]) for i in fresh), np.zeros(D))
            for i in fresh:
                h[i] = fresh[i]
            if kind == "momentum":
                m = 0.9 * m + delta
                return rate * m
            first = 0.0 if kind == "adagrad" else 0.9
            m = first * m + (1 - first) * delta
            if kind == "adagrad":
                v = v + delta**2
            elif kind == "adam":
                v = 0.99 * v + 0.01 * delta**2
            else:
                v = v - 0.01 * delta**2 * np.sign(v - delta**2)
            return np.asarray(rate * m / (np.sqrt(v) + 1e-3))

        return rounds(sets, one)

    return reference


def epoch(t: int) -> int:
    return int(generator(7, "scsg epoch", t).geometric(1 / 4)) - 1


def fedasync(sets: Sets) -> list[Array]:
    def one(t: int, w: Array, came: NDArray[np.int64]) -> Array:
        mixed = w.copy()
        for i in came:
            mixed = (1 - 0.3) * mixed + 0.3 * (w - train(i, w))
        return w - mixed

    return rounds(sets, one)


def latest(max_age: float) -> Reference:
    def reference(sets: Sets) -> list[Array]:
        last: dict[int, tuple[int, Array]] = {}

        def one(t: int, w: Array, came: NDArray[np.int64]) -> Array:
            last.update({int(i): (t, train(i, w)) for i in came})
            return mean({i: update for i, (when, update) in last.items() if t - when <= max_age})

        return rounds(sets, one)

    return reference


def area(sets: Sets) -> list[Array]:
    models = {i: START.copy() for i in range(N)}

    def one(t: int, w: Array, came: NDArray[np.int64]) -> Array:
        models.update({int(i): w - train(i, w) for i in came})
        return w - mean(models)

    return rounds(sets, one)


def ageing(sets: Sets) -> list[Array]:
    last: dict[int, tuple[int, Array]] = {}

    def one(t: int, w: Array, came: NDArray[np.int64]) -> Array:
        stale = {i: 0.8 * 0.5 ** ((t - when) / 2.0) * update for i, (when, update) in last.items()}
        delta = sum((ALPHA[i] * stale[i] for i in stale), np.zeros(D))
        fresh = {int(i): train(i, w) for i in came}
        for i, update in fresh.items():
            delta = delta + ALPHA[i] / P[i] * (update - stale.get(i, np.zeros(D)))
        last.update({i: (t, update) for i, update in fresh.items()})
        return np.asarray(delta)

    return rounds(sets, one)


PAIRS: list[tuple[fs.Rule, Reference]] = [
    (rules.make("fedavg"), fedavg),
    (rules.make("u-fedavg"), u_fedavg),
    (rules.make("fedvarp"), fedvarp),
    (rules.make("u-fedvarp"), fedstale(1.0)),
    (rules.make("fedstale", beta=0.4), fedstale(0.4)),
    (rules.make("tempered"), tempered(None, 1.0, 0.5)),
    (rules.make("tempered", beta=0.7, theta=0.3, refresh=0.2), tempered(0.3, 0.7, 0.2)),
    (rules.make("tempered", theta=0.5, self_normalised=True), tempered(0.5, 1.0, 0.5, normalised=True)),
    (rules.make("fedsteer"), fedsteer(N, 0.01, first=True)),
    (rules.make("u-fedsteer"), fedsteer(N, 0.01, first=False)),
    (rules.make("u-fedsteer", core=3, ridge=0.2), fedsteer(3, 0.2, first=False)),
    (rules.make("ca-fed"), cafed(1.0)),
    (rules.make("ca-fed", bias_weight=4.0), cafed(4.0)),
    (rules.make("fedau", cutoff=4), fedau(4)),
    (rules.make("mifa"), mifa(wait=False)),
    (rules.make("mifa-wait"), mifa(wait=True)),
    (rules.make("fedlaavg"), fedlaavg),
    (rules.make("fedlaavg", m=2), fedlaavg),
    (rules.make("fedawe"), fedawe(1.0)),
    (rules.make("fedawe", server_lr=0.7), fedawe(0.7)),
    (rules.make("afa-cd", max_delay=4, seed=7), anarchic(silo=False)),
    (rules.make("afa-cs", max_delay=4, seed=7), anarchic(silo=True)),
    (rules.make("fedasync", mixing=0.3), fedasync),
    (rules.make("fedbuff"), fedavg),  # these are the same in rounds; test_asynchronous.py has them in time
    (rules.make("u-fedbuff", max_step=None), u_fedavg),
    (rules.make("ca2fl"), fedvarp),
    (rules.make("ace"), latest(np.inf)),
    (rules.make("ace", wait=True), mifa(wait=True)),
    (rules.make("aced", max_age=1), latest(1)),
    (rules.make("area"), area),
    (rules.make("fedstale-async", beta=0.8, half_life=2.0, max_step=None), ageing),
    (rules.make("scaffold", option="I"), scaffold("I")),
    (rules.make("scaffold", option="II"), scaffold("II")),
    (rules.make("fedamd", anchors=0.4, seed=7), fedamd(0.4)),
    (rules.make("svrg", period=4), anchored(False, N, lambda t: 4)),
    (rules.make("scsg", period=3, share=0.7, seed=7), anchored(False, 4, epoch)),
    (rules.make("sarah", period=4), anchored(True, N, lambda t: 4)),
    (rules.make("spider", period=4, share=0.7, clip=0.2), anchored(True, 4, lambda t: 4, clip=0.2)),
    (rules.make("fedprox", mu=0.7), fedprox),
    (rules.make("feddyn", a=2.0), feddyn),
    *(
        (rules.make(f"fedstale+{kind}", beta=0.5, server_lr=0.05), optimized(kind, 0.05))
        for kind in ("momentum", "adagrad", "adam", "yogi")
    ),
]


@pytest.mark.parametrize(("rule", "reference"), PAIRS, ids=[repr(rule) for rule, _ in PAIRS])
def test_against_the_formula(rule: fs.Rule, reference: Reference) -> None:
    problem = Quadratic(A, C, ALPHA, START)
    simulation = Simulation(
        trainer=QuadraticTrainer(problem, LR, K),
        rule=rule,
        participation=Participation(Bernoulli(P)),
        estimator=KnownProbabilities(P),
        federation=fs.Federation(N, D, weights=ALPHA),
        rounds=ROUNDS,
        seed=4,  # nobody comes in some rounds, also between two anchors of SARAH and SPIDER
        memory="ram:float64",
    )
    models = []
    for _ in range(ROUNDS):
        simulation.step()
        models.append(simulation.model.copy())
    sets = [record.participants for record in simulation.records]
    assert len({tuple(came) for came in sets}) > 5
    assert min(len(came) for came in sets) == 0
    expected = reference(sets)
    assert np.linalg.norm(expected[-1] - START) > 0.5  # the model has moved
    for t in range(ROUNDS):
        assert models[t] == pytest.approx(expected[t], rel=1e-9, abs=1e-9), t


def test_every_rule_has_a_reference() -> None:
    assert {rule.name for rule, _ in PAIRS if "+" not in rule.name} == set(rules.RULES)
    assert {rule.name.partition("+")[2] for rule, _ in PAIRS} == {"", *rules.OPTIMIZERS}


@pytest.mark.parametrize("silo", [False, True])
def test_anarchic_updates_count_per_local_step(silo: bool) -> None:
    """Clients with 1, 2 and 4 local steps: Δ = K̄ · mean of Δ_i / K_i, K̄ given or the mean over the arrivals so far."""
    rng = np.random.default_rng(0)
    for given in (None, 3.0):
        rule = rules.make("afa-cs" if silo else "afa-cd", local_steps=given)
        state = rule.init(fs.Federation(3, D), memory="ram:float64")
        latest, steps = np.zeros((3, D)), np.array([1.0, 2.0, 4.0])
        counted: list[float] = []
        for t, came in enumerate(([0, 2], [1], [], [0, 1, 2])):
            updates = rng.normal(size=(len(came), D))
            delta: Any = rule.combine(state, fs.Round(t, came, updates, steps=steps[came]))
            fresh = updates / steps[came][:, None]
            latest[came] = fresh
            counted += list(steps[came])
            scale = given or np.mean(counted)
            plain = latest.mean(0) if silo else fresh.mean(0) if came else np.zeros(D)
            assert delta == pytest.approx(scale * plain, abs=1e-12)
