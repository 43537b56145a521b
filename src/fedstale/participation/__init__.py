"""Who shows up (processes), whom the server asks (selection), what p_i is (estimators): spec §4 and §5."""

from .estimator import Estimator, EstimatorState, KnownProbabilities
from .estimators import BetaFrequency, FedAUEstimator, Forgetting
from .frequencies import Frequencies, frequencies, wilson
from .inclusion import averaging_weights
from .processes import Bernoulli, Correlated, Markov, Process, two_groups
from .registry import ESTIMATORS, PROCESSES, SELECTIONS, make, make_estimator, make_selection
from .selection import All, Fraction, LeastRecent, Participation, Selection, UniformSample
from .trace import Trace
from .varying import Breakpoints, Cyclic, TimeVarying

__all__ = [
    "ESTIMATORS",
    "PROCESSES",
    "SELECTIONS",
    "All",
    "Bernoulli",
    "BetaFrequency",
    "Breakpoints",
    "Correlated",
    "Cyclic",
    "Estimator",
    "EstimatorState",
    "FedAUEstimator",
    "Forgetting",
    "Fraction",
    "Frequencies",
    "KnownProbabilities",
    "LeastRecent",
    "Markov",
    "Participation",
    "Process",
    "Selection",
    "TimeVarying",
    "Trace",
    "UniformSample",
    "averaging_weights",
    "frequencies",
    "make",
    "make_estimator",
    "make_selection",
    "two_groups",
    "wilson",
]
