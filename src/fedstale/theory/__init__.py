"""The theory of the paper: the bounds, the best β they imply, the hard instance, moments from a run."""

from __future__ import annotations

from .hard import HardInstance, HardRun
from .heterogeneity import ParticipationSummary, participation_summary
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
from .upper import Problem, UpperBound, upper_bound

__all__ = [
    "LARGEST_DRIFT",
    "BetaCoefficients",
    "HardInstance",
    "HardRun",
    "MomentEstimator",
    "Moments",
    "Observation",
    "ParticipationSummary",
    "Problem",
    "StepSizeLimits",
    "UpperBound",
    "beta_coefficients",
    "check_step_sizes",
    "expected_reach_bound",
    "largest_drift",
    "lower_bound",
    "noise_and_heterogeneity",
    "optimal_beta",
    "optimal_beta_from_moments",
    "participation_summary",
    "reach",
    "reach_bound",
    "simulate_reach",
    "step_size_limits",
    "upper_bound",
]
