"""The batched server is `fedstale.rules`, run by run and round by round."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedstale import beta, rules, theta
from fedstale.federation import Federation, Round
from fedstale.rules import Rule
from fedstale.sweeps.batched_server import BatchedServer, supports

KINDS: list[Rule] = [
    rules.FedAvg(),
    rules.UnbiasedFedAvg(),
    rules.FedVARP(),
    rules.UnbiasedFedVARP(),
    rules.FedStale(beta=0.0),
    rules.FedStale(beta=0.3),
    rules.FedStale(beta=1.0),
    rules.FedStale(),
    rules.FedStale(beta="auto-per-client"),
    rules.MIFA(),
    rules.TemperedFedStale(),
    rules.TemperedFedStale(beta=0.7, refresh=0.1),
    rules.TemperedFedStale(theta=0.4, refresh=1.0),
    rules.TemperedFedStale(stand_in=False),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("weighted", [False, True])
def test_equals_the_rules(weighted: bool) -> None:
    n, d, rng = 7, 33, np.random.default_rng(5)
    p = np.array([1.0, 1.0, 0.5, 0.3, 0.3, 0.2, 0.9])
    sizes = rng.integers(5, 50, n)
    federation = Federation(n, d, weights="sample" if weighted else "client", sizes=sizes)
    server = BatchedServer(KINDS, federation.alpha(), d)
    states = [rule.init(federation) for rule in KINDS]
    direction = rng.standard_normal((n, d))
    for t in range(40):
        clients = np.flatnonzero(rng.random(n) < p) if t != 7 else np.empty(0, dtype=np.int64)
        # Updates that are alike from round to round, so that β̂ moves between 0 and 1.
        fresh = (0.6 * direction[clients] + rng.standard_normal((len(KINDS), len(clients), d))).astype(np.float32)
        rows = [server.room() for _ in clients]
        for k, row in enumerate(rows):
            row.copy_(torch.from_numpy(fresh[:, k]))
        delta = server.combine(t, clients, rows, np.tile(p[clients], (len(KINDS), 1))).numpy()
        for r, (rule, state) in enumerate(zip(KINDS, states, strict=True)):
            wanted = rule.combine(state, Round(t, clients, fresh[r], probabilities=p[clients]))
            np.testing.assert_allclose(delta[r], wanted, rtol=2e-5, atol=2e-5)
            for name, values in server.reported.items():
                assert values[r] == pytest.approx(state.report.get(name, np.nan), abs=1e-9, nan_ok=True)
    assert 0.0 < server.reported["beta"][7] < 1.0


def test_each_run_has_its_own_probabilities() -> None:
    server = BatchedServer([rules.UnbiasedFedAvg()] * 2, np.array([0.5, 0.5]), 3)
    row = server.room().copy_(torch.ones(2, 3))
    delta = server.combine(0, np.array([1]), [row], np.array([[0.5], [0.25]]))
    np.testing.assert_allclose(delta.numpy(), [[1.0] * 3, [2.0] * 3])


def test_infinite_updates_teach_beta_nothing() -> None:
    server = BatchedServer([rules.FedStale(), rules.FedStale(beta="auto-per-client")], np.array([1.0]), 2)
    for t, value in enumerate((1.0, 2.0, np.inf)):
        row = server.room().copy_(torch.full((2, 2), value))
        server.combine(t, np.array([0]), [row], np.full((2, 1), 0.5))
    assert np.isfinite(server.sums).all()
    assert server.sums[1, 0] == pytest.approx(4.0 + 2 * 4.0)  # (t + 1) α² (1 − p)/p² ‖h‖², at first ‖Δ‖²


@pytest.mark.parametrize(
    "rule",
    [
        rules.FedStale(beta="theory"),
        rules.FedStale(beta={0: 1.0}),
        rules.FedStale(beta=beta.Auto(forget=0.9)),
        rules.TemperedFedStale(self_normalised=True),
        rules.TemperedFedStale(beta="auto"),
        rules.TemperedFedStale(theta=theta.AutoTheta(start=0.0)),
        rules.ServerAdam(rules.FedAvg()),
        rules.WaitingMIFA(),
        rules.Scaffold(),
    ],
    ids=repr,
)
def test_other_rules_are_refused(rule: Rule) -> None:
    assert not supports(rule)
