"""Who shows up (processes), whom the server asks (selection), what p_i is (estimators): spec §4 and §5."""

from .bootstrap import Bootstrap
from .daily import DailyMarkov
from .daily_estimator import DailyFrequency
from .estimator import Estimator, EstimatorState, KnownProbabilities
from .estimators import BetaFrequency, FedAUEstimator, Forgetting
from .frequencies import Frequencies, frequencies, wilson
from .groups import groups_text, quantile_groups, quantiles_text
from .inclusion import averaging_weights
from .log_summary import LogSummary, summarise
from .phones import phones, read_phones
from .processes import Bernoulli, Correlated, Markov, Process, two_groups
from .registry import ESTIMATORS, PROCESSES, SELECTIONS, make, make_estimator, make_selection, takes_p_min
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
    "Bootstrap",
    "Breakpoints",
    "Correlated",
    "Cyclic",
    "DailyFrequency",
    "DailyMarkov",
    "Estimator",
    "EstimatorState",
    "FedAUEstimator",
    "Forgetting",
    "Fraction",
    "Frequencies",
    "KnownProbabilities",
    "LeastRecent",
    "LogSummary",
    "Markov",
    "Participation",
    "Process",
    "Selection",
    "TimeVarying",
    "Trace",
    "UniformSample",
    "averaging_weights",
    "frequencies",
    "groups_text",
    "make",
    "make_estimator",
    "make_selection",
    "phones",
    "quantile_groups",
    "quantiles_text",
    "read_phones",
    "summarise",
    "takes_p_min",
    "two_groups",
    "wilson",
]
