"""Claims are held, not held or not decided by what was measured, and by nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from fedstale.analysis import Estimate
from fedstale.paper import claims
from fedstale.paper.claims import HELD, NOT_DECIDED, NOT_HELD, Claim
from fedstale.paper.fig1 import METHODS
from fedstale.paper.table import Table

from .synthetic import as_the_paper_says, measured


def verdicts(rows: list[Claim]) -> list[str]:
    return [row.verdict for row in rows]


def test_decide() -> None:
    assert claims.decide(Estimate(0.05, 0.01, 3)) == HELD
    assert claims.decide(Estimate(-0.05, 0.01, 3)) == NOT_HELD
    assert claims.decide(Estimate(0.04, 0.01, 3)) == NOT_DECIDED
    assert claims.decide(Estimate(0.04, 0.01, 10)) == HELD
    assert claims.decide(Estimate(0.03, 0.01, 100)) == HELD
    assert claims.decide(Estimate(0.05, 0.01, 2)) == NOT_DECIDED
    assert claims.decide(Estimate(0.02, float("nan"), 1)) == NOT_DECIDED
    assert claims.decide(Estimate(0.0, 0.0, 3)) == NOT_DECIDED


def test_all_of() -> None:
    assert claims.all_of([HELD, HELD]) == HELD
    assert claims.all_of([HELD, NOT_DECIDED]) == NOT_DECIDED
    assert claims.all_of([NOT_DECIDED, NOT_HELD]) == NOT_HELD
    assert claims.all_of([]) == NOT_DECIDED


def test_chance_is_no_finding() -> None:
    assert claims.more_than_chance(29, 48) == NOT_DECIDED
    assert claims.more_than_chance(35, 48) == NOT_DECIDED  # the paper's own 72 %
    assert claims.more_than_chance(36, 48) == HELD
    assert claims.more_than_chance(20, 48) == NOT_HELD


def test_a_world_as_the_paper_says() -> None:
    table = Table.of(measured(as_the_paper_says))
    assert verdicts(claims.fig2_claims(table)) == [HELD] * 6
    assert "48 of 48 cells" in claims.fig2_claims(table)[0].measured


def test_the_opposite_world() -> None:
    def opposite(p: float, swap: float, beta: float | str, seed: int, lr: float) -> float:
        return 2.0 - as_the_paper_says(p, swap, beta, seed, lr)

    found = verdicts(claims.fig2_claims(Table.of(measured(opposite))))
    assert HELD not in found
    assert found[0] == found[1] == found[2] == found[3] == NOT_HELD


def test_nothing_is_decided_on_half_a_grid() -> None:
    table = Table.of(measured(as_the_paper_says, p_min=(0.5, 0.1), swaps=(0.0, 0.6)))
    found = claims.fig2_claims(table)
    assert verdicts(found)[:4] == [NOT_DECIDED] * 4
    assert "4 of 48" in found[0].measured
    assert verdicts(claims.fig2_claims(Table([]))) == [NOT_DECIDED] * 6
    assert verdicts(claims.fig34_claims(Table([]))) == [NOT_DECIDED] * 2


def test_one_seed_decides_no_difference() -> None:
    found = claims.fig2_claims(Table.of(measured(as_the_paper_says, seeds=1)))
    assert verdicts(found)[1:] == [NOT_DECIDED] * 5


def test_noise_is_not_a_finding() -> None:
    rng = np.random.default_rng(0)
    table = Table.of(measured(lambda *place: 0.9 + 0.01 * float(rng.standard_normal())))
    assert verdicts(claims.fig2_claims(table))[1:4] != [HELD] * 3


def test_figures_3_and_4() -> None:
    assert verdicts(claims.fig34_claims(Table.of(measured(as_the_paper_says)))) == [HELD, HELD]


@pytest.mark.parametrize(("harm", "verdict"), [(0.05, HELD), (-0.05, NOT_HELD)])
def test_estimated_probabilities(harm: float, verdict: str) -> None:
    def estimated(p: float, swap: float, beta: float | str, seed: int, lr: float) -> float:
        lost = harm if beta == 1.0 else 0.001 * seed
        return as_the_paper_says(p, swap, beta, seed, lr) - lost

    known = Table.of(measured(as_the_paper_says, swaps=(0.6,)))
    other = Table.of(measured(estimated, swaps=(0.6,), probabilities="fedau"))
    assert claims.fig5_claims(known, other)[0].verdict == verdict
    assert verdicts(claims.fig5_claims(known, Table([]))) == [NOT_DECIDED, NOT_DECIDED]


def test_auto_is_judged_in_its_worst_cell() -> None:
    good = Table.of(measured(as_the_paper_says))
    assert verdicts(claims.auto_claims(good)) == [HELD, HELD]

    def slips(p: float, swap: float, beta: float | str, seed: int, lr: float) -> float:
        fallen = 0.2 if beta == "auto" and (p, swap) == (0.02, 0.4) else 0.0
        return as_the_paper_says(p, swap, beta, seed, lr) - fallen

    first, second = claims.auto_claims(Table.of(measured(slips)))
    assert (first.verdict, second.verdict) == (NOT_HELD, NOT_HELD)
    assert "p_min 0.02, swap 0.4" in first.measured
    assert claims.auto_claims(Table.of(measured(as_the_paper_says, betas=(0.0, 1.0)))) == []


def test_figure_1() -> None:
    rounds = np.arange(10.0)
    draws = np.random.default_rng(1).random((10, 10))
    curves = {label: (rounds, k + 0.01 * draws) for label, k in zip(METHODS, (2.0, 3.0, 1.0, 1.5), strict=True)}
    assert claims.fig1_claim(curves).verdict == HELD
    curves["FedStale (β=0.8)"] = (rounds, 9 + 0.01 * draws)
    assert claims.fig1_claim(curves).verdict == NOT_HELD
    assert claims.fig1_claim({}).verdict == NOT_DECIDED


def test_markdown() -> None:
    text = claims.markdown([Claim("a", "b", HELD)])
    assert text.splitlines()[-1] == "| a | b | **held** |"


def test_auto_against_the_beta_that_other_seeds_chose() -> None:
    def flat(p: float, swap: float, beta: float | str, seed: int, lr: float) -> float:
        return 0.8 + (0.01 if beta == "auto" else 0.0) + 0.0001 * seed

    chosen, fresh = Table.of(measured(as_the_paper_says)), Table.of(measured(flat))
    row = claims.fresh_claims(fresh, chosen)[0]
    assert row.verdict == HELD
    assert "+1.00 ± 0.00" in row.measured
    assert claims.fresh_claims(Table([]), chosen) == []
