"""The batched server is `fedstale.rules`, run by run and round by round."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedstale import rules
from fedstale.federation import Federation, Round
from fedstale.sweeps.batched_server import BatchedServer, supports

KINDS: list[tuple[str, float | str | None]] = [
    ("fedavg", None),
    ("u-fedavg", None),
    ("fedvarp", None),
    ("u-fedvarp", None),
    ("fedstale", 0.0),
    ("fedstale", 0.3),
    ("fedstale", 1.0),
    ("fedstale", "auto"),
    ("fedstale", None),
    ("fedstale", "auto-per-client"),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("weighted", [False, True])
def test_equals_the_rules(weighted: bool) -> None:
    n, d, rng = 7, 33, np.random.default_rng(5)
    p = np.array([1.0, 1.0, 0.5, 0.3, 0.3, 0.2, 0.9])
    sizes = rng.integers(5, 50, n)
    federation = Federation(n, d, weights="sample" if weighted else "client", sizes=sizes)
    server = BatchedServer([rule for rule, _ in KINDS], [beta for _, beta in KINDS], federation.alpha(), d)
    made = [rules.make(rule, **({} if beta is None else {"beta": beta})) for rule, beta in KINDS]
    states = [rule.init(federation) for rule in made]
    direction = rng.standard_normal((n, d))
    for t in range(40):
        clients = np.flatnonzero(rng.random(n) < p) if t != 7 else np.empty(0, dtype=np.int64)
        # Updates that are alike from round to round, so that β̂ moves between 0 and 1.
        fresh = (0.6 * direction[clients] + rng.standard_normal((len(KINDS), len(clients), d))).astype(np.float32)
        rows = [server.room() for _ in clients]
        for k, row in enumerate(rows):
            row.copy_(torch.from_numpy(fresh[:, k]))
        delta = server.combine(t, clients, rows, np.tile(p[clients], (len(KINDS), 1))).numpy()
        for r, (rule, state) in enumerate(zip(made, states, strict=True)):
            wanted = rule.combine(state, Round(t, clients, fresh[r], probabilities=p[clients]))
            np.testing.assert_allclose(delta[r], wanted, rtol=2e-5, atol=2e-5)
            if "beta" in state.report:
                assert server.reported[r] == pytest.approx(state.report["beta"], abs=1e-9)
            else:
                assert np.isnan(server.reported[r])
    assert 0.0 < server.reported[7] < 1.0


def test_each_run_has_its_own_probabilities() -> None:
    server = BatchedServer(["u-fedavg", "u-fedavg"], [None, None], np.array([0.5, 0.5]), 3)
    row = server.room().copy_(torch.ones(2, 3))
    delta = server.combine(0, np.array([1]), [row], np.array([[0.5], [0.25]]))
    np.testing.assert_allclose(delta.numpy(), [[1.0] * 3, [2.0] * 3])


def test_infinite_updates_teach_beta_nothing() -> None:
    server = BatchedServer(["fedstale"] * 2, ["auto", "auto-per-client"], np.array([1.0]), 2)
    for t, value in enumerate((1.0, 2.0, np.inf)):
        row = server.room().copy_(torch.full((2, 2), value))
        server.combine(t, np.array([0]), [row], np.full((2, 1), 0.5))
    assert np.isfinite(server.sums).all()
    assert server.sums[1, 0] == pytest.approx(4.0 + 2 * 4.0)  # (t + 1) α² (1 − p)/p² ‖h‖², at first ‖Δ‖²


@pytest.mark.parametrize(("rule", "beta"), [("fedstale", "theory"), ("fedstale", 1.5), ("fedavg", 0.5), ("mifa", None)])
def test_other_rules_are_refused(rule: str, beta: float | str | None) -> None:
    assert not supports(rule, beta)
