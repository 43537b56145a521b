"""The theory of the paper: the bounds, the best β they imply, the hard instance, moments from a run."""

from __future__ import annotations

from .correlated import WeightVariance, correlated_noise, weight_variance
from .hard import HardInstance, HardRun
from .heterogeneity import ParticipationSummary, participation_summary
from .lemmas import (
    Drift,
    Lyapunov,
    MemoryBound,
    Progress,
    UpdateVariance,
    drift_bound,
    local_drift_bound,
    lyapunov,
    memory_error_bound,
    progress_bound,
    update_variance_bound,
)
from .lower import expected_reach_bound, lower_bound, reach, reach_bound, simulate_reach
from .moments import MomentEstimator, Moments, Observation, noise_and_heterogeneity
from .optimum import (
    LARGEST_DRIFT,
    BetaCoefficients,
    beta_coefficients,
    largest_drift,
    optimal_beta,
    optimal_beta_from_moments,
)
from .steps import StepSizeLimits, check_step_sizes, step_size_limits
from .tempered import tempered_bias, tempered_noise
from .upper import Problem, UpperBound, upper_bound

__all__ = [
    "LARGEST_DRIFT",
    "BetaCoefficients",
    "Drift",
    "HardInstance",
    "HardRun",
    "Lyapunov",
    "MemoryBound",
    "MomentEstimator",
    "Moments",
    "Observation",
    "ParticipationSummary",
    "Problem",
    "Progress",
    "StepSizeLimits",
    "UpdateVariance",
    "UpperBound",
    "WeightVariance",
    "beta_coefficients",
    "check_step_sizes",
    "correlated_noise",
    "drift_bound",
    "expected_reach_bound",
    "largest_drift",
    "local_drift_bound",
    "lower_bound",
    "lyapunov",
    "memory_error_bound",
    "noise_and_heterogeneity",
    "optimal_beta",
    "optimal_beta_from_moments",
    "participation_summary",
    "progress_bound",
    "reach",
    "reach_bound",
    "simulate_reach",
    "step_size_limits",
    "tempered_bias",
    "tempered_noise",
    "update_variance_bound",
    "upper_bound",
    "weight_variance",
]
