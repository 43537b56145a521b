"""Is keeping stale updates worth it here? What the theory and the guidelines say about one federation.

From p_i alone: the heterogeneity of participation (Section 4), what the weights 1/p_i do to the variance of each
rule (spec §7), β* of the bound for assumed data heterogeneity, and the storage N·d.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from . import theory
from .checks import Float, number, positive_int, probabilities

_RATIO_OF_FEDAVG = 25.0
"""Guideline of Section 5: with p_avg ≥ 25 p_min and little data heterogeneity, fresh updates alone won."""


@dataclass(frozen=True)
class Advice:
    """What was found, and the sentence that follows from it.

    Attributes
    ----------
    num_clients, p_avg, p_min, ratio, inverse_p_var
        The heterogeneity of participation: p_avg/p_min is its degree, 1/p_var the mean of (1 − p_i)/p_i.
    variance
        Participation noise of the global update by rule, in units of ‖Δ_i‖² (all alike), for stale updates that
        resemble the fresh ones with the given correlation.
    theory_beta
        β* of the bound, by σ_g² in units of σ²/K.
    storage
        Bytes of N·d at float32 and at bfloat16.
    keep
        Whether to keep stale updates.
    sentence
        The advice in words.
    """

    num_clients: int
    p_avg: float
    p_min: float
    ratio: float
    inverse_p_var: float
    correlation: float
    variance: dict[str, float]
    theory_beta: dict[float, float]
    storage: dict[str, int]
    keep: bool
    sentence: str


def advise(p: ArrayLike, num_params: int = 421_642, correlation: float = 0.5) -> Advice:
    """Say whether to keep stale updates, and with which β.

    Parameters
    ----------
    p
        Probabilities of the clients, shape (N,), each in (0, 1].
    num_params
        d, for the storage; default: the paper's MNIST model.
    correlation
        What ⟨Δ_i, h_i⟩/‖h_i‖² is assumed to be: how much of an update is still true when the client comes back.
    """
    values = probabilities("p", p)
    positive_int("num_params", num_params)
    number("correlation", correlation, -1.0, 1.0)
    summary = theory.participation_summary(values)
    n = summary.num_clients
    best = float(np.clip(correlation, 0.0, 1.0))
    variance = {
        "U-FedAvg (β = 0)": _noise(values, 0.0, correlation),
        "U-FedVARP (β = 1)": _noise(values, 1.0, correlation),
        "FedStale (β = 0.5)": _noise(values, 0.5, correlation),
        f"FedStale (best β = {best:.2f})": _noise(values, best, correlation),
    }
    by_theory = {g: theory.optimal_beta_from_moments(1.0, g, values) for g in (1.0, 10.0, 100.0, 1000.0)}
    storage = {"float32": 4 * n * num_params, "bfloat16": 2 * n * num_params}
    keep, sentence = _sentence(summary, storage["float32"])
    return Advice(
        num_clients=n,
        p_avg=summary.p_avg,
        p_min=summary.p_min,
        ratio=summary.ratio,
        inverse_p_var=summary.inverse_p_var,
        correlation=correlation,
        variance=variance,
        theory_beta=by_theory,
        storage=storage,
        keep=keep,
        sentence=sentence,
    )


def _noise(p: Float, beta: float, correlation: float) -> float:
    """Σ α² ((1−p)/p) ‖Δ − βh‖² with ‖Δ‖ = ‖h‖ = 1 and ⟨Δ, h⟩ = correlation, α = 1/N."""
    return float(np.mean((1 - p) / p) / len(p) * (1 - 2 * beta * correlation + beta**2))


def _sentence(summary: theory.ParticipationSummary, storage: int) -> tuple[bool, str]:
    size = f"{storage / 1e9:.1f} GB" if storage >= 1e9 else f"{storage / 1e6:.0f} MB"
    if summary.inverse_p_var == 0:
        return False, "Do not keep stale updates: every client always comes, and plain averaging is exact."
    seldom = f"p_avg/p_min = {summary.ratio:.3g}"
    if summary.ratio >= _RATIO_OF_FEDAVG:
        return True, (
            f'Keep stale updates with beta="auto" ({size}): {seldom} is large, so old updates mislead when the '
            'clients\' data are alike (β should be near 0) and help when they differ; "auto" adapts to either.'
        )
    if summary.ratio < 2:
        return True, (
            f"Keep stale updates ({size}): {seldom} is close to 1, where remembered updates are young and, with "
            'data that differ between clients, the full weight β = 1 (FedVARP) is good; beta="auto" finds it.'
        )
    return True, (
        f'Keep stale updates with an intermediate β or beta="auto" ({size}): {seldom} is in the range where '
        "neither fresh updates alone (noise of the weights 1/p) nor the full weight on stale ones is best."
    )
