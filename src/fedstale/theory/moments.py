"""σ², σ_g² and L from what a server sees anyway, so that β* can be computed in practice (Eq. `beta_opt`).

Everything is in the scale of the updates: Δ_i = η_c K g_i, so the noise of an update is (η_c K)² σ²/K, its
dispersion between clients (η_c K)² σ_g², and it answers a move of the model with at most η_c K L times the
length of the move. β* needs only ratios; `Moments.gradient_scale` converts. The estimates, and their biases:

noise
    Half of ‖Δ_i − h_i‖² over clients whose h_i is at most `max_gap` rounds old. Too high because the model
    moved in between; where its moves are told, curvature²·‖move‖²/2 is taken off. Clients that come often
    count more: biased where their noise differs. The noise in h_i also took part in moving the model, which
    adds an error of relative order η L α_i/p_i.
heterogeneity
    Half of ‖Δ_i − Δ_j‖² over pairs of participants of a round, less the noise; cut at 0. A mean over pairs,
    where the paper takes the largest ‖∇F_i − ∇F‖²: too low as that bound. Pairs of frequent clients count
    more, unless the round is weighted by 1/p_i. An error of the noise enters with a minus.
curvature
    √slope of the line ‖Δ_i − h_i‖² ≈ 2·noise + slope·‖w_t − w_{t−gap}‖². It sees the curvature along the
    path, not the largest: too low as L. With K local steps it sees 1−(1−η_c L)^K instead of η_c K L. It needs
    moves that show above the noise: curvature·‖move‖ far below the noise of an update gives any number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ..checks import Float, fail, number, positive_int, vector


class _MomentSums(NamedTuple):
    """The slots of the state: plain sums over all that was seen."""

    recent: float  # number of recent pairs (Δ_i, h_i)
    recent_change: float  # Σ ‖Δ_i − h_i‖² over them
    recent_moved: float  # Σ ‖w_t − w_{t−gap}‖² over them
    pairs: float  # Σ a_i a_j over pairs of participants, a_i their weights
    spread: float  # Σ a_i a_j ‖Δ_i − Δ_j‖²/2 over the same pairs
    points: float  # the line through (moved, change): their number and sums
    moved: float
    change: float
    moved_squared: float
    moved_change: float


@dataclass(frozen=True, eq=False)
class Observation:
    """What one round tells: O(|S|·d) work for the server, |S| numbers each.

    Parameters
    ----------
    fresh_sq, inner, stale_sq
        ‖Δ_i‖², ⟨Δ_i, h_i⟩ and ‖h_i‖² of the participants, shape (|S|,).
    gap
        Rounds since h_i was stored, shape (|S|,); 0 where there is no h_i yet.
    mean_sq
        ‖Σ a_i Δ_i / Σ a_i‖², with the weights below.
    moved_sq
        ‖w_t − w_{t−gap}‖², shape (|S|,), where the server can tell it.
    weights
        a_i, shape (|S|,): 1 by default; 1/p_i makes the heterogeneity that of all clients.
    """

    fresh_sq: ArrayLike
    inner: ArrayLike
    stale_sq: ArrayLike
    gap: ArrayLike
    mean_sq: float
    moved_sq: ArrayLike | None = None
    weights: ArrayLike | None = None

    @classmethod
    def of(
        cls,
        fresh: Float,
        stale: Float,
        gap: ArrayLike,
        moved_sq: ArrayLike | None = None,
        weights: ArrayLike | None = None,
    ) -> Observation:
        """Compute the scalars from Δ_i and h_i, both of shape (|S|, d)."""
        if fresh.ndim != 2 or fresh.shape != stale.shape:
            raise fail("stale", f"array of shape {stale.shape}", f"must have the shape of fresh, {fresh.shape}")
        a = np.ones(len(fresh)) if weights is None else vector("weights", weights, len(fresh))
        mean = a @ fresh / a.sum() if len(fresh) else np.zeros(fresh.shape[1])
        return cls(
            fresh_sq=np.einsum("ij,ij->i", fresh, fresh),
            inner=np.einsum("ij,ij->i", fresh, stale),
            stale_sq=np.einsum("ij,ij->i", stale, stale),
            gap=gap,
            mean_sq=float(mean @ mean),
            moved_sq=moved_sq,
            weights=weights,
        )


@dataclass(frozen=True)
class Moments:
    """Estimates in the scale of the updates; NaN where nothing was seen that could tell."""

    sigma2_over_K: float
    sigma_g2: float
    curvature: float

    def drift(self, K: int) -> float:
        """η_c²L²K(K−1), which is curvature²·(K−1)/K: no rate is needed."""
        return self.curvature**2 * (positive_int("K", K) - 1) / K

    def gradient_scale(self, lr_client: float, K: int) -> tuple[float, float, float]:
        """σ², σ_g² and L of the gradients."""
        scale = number("lr_client", lr_client, 0.0, open_low=True) * positive_int("K", K)
        return self.sigma2_over_K * K / scale**2, self.sigma_g2 / scale**2, self.curvature / scale


@dataclass(frozen=True)
class MomentEstimator:
    """Running estimates of the moments; the state is one array of sums.

    Parameters
    ----------
    max_gap
        Age in rounds up to which h_i counts as recent.
    forget
        Factor in (0, 1] on the past in each round; 1 forgets nothing.
    """

    max_gap: int = 1
    forget: float = 1.0

    def __post_init__(self) -> None:
        positive_int("max_gap", self.max_gap)
        number("forget", self.forget, 0.0, 1.0, open_low=True)

    def init(self) -> Float:
        """Return the empty state, shape (10,)."""
        return np.zeros(len(_MomentSums._fields))

    def update(self, state: Float, seen: Observation) -> Float:
        """Return the state after one more round; the given one is not changed."""
        state = vector("state", state, len(_MomentSums._fields))
        fresh = vector("fresh_sq", seen.fresh_sq)
        size = fresh.size
        change = fresh - 2.0 * vector("inner", seen.inner, size) + vector("stale_sq", seen.stale_sq, size)
        gap = vector("gap", seen.gap, size)
        known = gap > 0
        recent = known & (gap <= self.max_gap)
        a = np.ones(size) if seen.weights is None else vector("weights", seen.weights, size)
        if (gap < 0).any():
            raise fail("gap", seen.gap, "must be rounds since h_i was stored, 0 where there is none")
        if (a <= 0).any():
            raise fail("weights", seen.weights, "must be positive")
        if seen.moved_sq is None:
            x, line = np.zeros(size), np.zeros(size, dtype=np.bool_)
        else:
            x, line = vector("moved_sq", seen.moved_sq, size), known
        total = a.sum()
        new = _MomentSums(
            recent=recent.sum(),
            recent_change=change[recent].sum(),
            recent_moved=x[recent].sum(),
            pairs=total**2 - a @ a,
            spread=total * (a @ fresh) - total**2 * number("mean_sq", seen.mean_sq, 0.0),
            points=line.sum(),
            moved=x[line].sum(),
            change=change[line].sum(),
            moved_squared=float(x[line] @ x[line]),
            moved_change=float(x[line] @ change[line]),
        )
        return self.forget * state + np.array(new, dtype=np.float64)

    def estimate(self, state: Float, num_clients: int | None = None) -> Moments:
        """Return the estimates; see `noise_and_heterogeneity` for `num_clients`."""
        return Moments(*noise_and_heterogeneity(state, num_clients), float(np.sqrt(_slope(_sums(state)))))


def noise_and_heterogeneity(state: Float, num_clients: int | None = None) -> tuple[float, float]:
    """Return (σ²/K, σ_g²) in the squared scale of the updates from the sums of a `MomentEstimator`.

    The mean over pairs is N/(N−1) times the mean ‖∇F_i − ∇F‖² over N clients; `num_clients` takes that factor
    out. NaN where no recent pair, or no two clients in one round, were seen yet.
    """
    s = _sums(state)
    if s.recent == 0:
        return float("nan"), float("nan")
    moved = np.nan_to_num(_slope(s)) * s.recent_moved
    noise = max((s.recent_change - moved) / (2.0 * s.recent), 0.0)
    if s.pairs == 0:
        return noise, float("nan")
    finite = 1.0 if num_clients is None else 1.0 - 1.0 / positive_int("num_clients", num_clients, 2)
    return noise, max(s.spread / s.pairs - noise, 0.0) * finite


def _sums(state: Float) -> _MomentSums:
    return _MomentSums(*(float(value) for value in vector("state", state, len(_MomentSums._fields))))


def _slope(s: _MomentSums) -> float:
    """Least-squares slope of change against moved, at least 0; NaN when all moves are equal."""
    if s.points == 0:
        return float("nan")
    variance = s.moved_squared / s.points - (s.moved / s.points) ** 2
    if variance <= 1e-12 * s.moved_squared / s.points:
        return float("nan")
    return max((s.moved_change / s.points - s.moved * s.change / s.points**2) / variance, 0.0)
