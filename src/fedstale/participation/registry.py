"""Processes, selections and estimators by name, for config files and the command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from ..checks import Float, choose, client_count, fail, unknown
from ..federation import Ints
from .daily_estimator import DailyFrequency
from .estimator import Estimator, KnownProbabilities
from .estimators import BetaFrequency, FedAUEstimator, Forgetting
from .phones import phones
from .processes import Bernoulli, Correlated, Markov, Process, two_groups
from .selection import All, Fraction, LeastRecent, Selection, UniformSample
from .trace import Trace
from .varying import Cyclic, TimeVarying

T = TypeVar("T")

_TWO_GROUPS = ("two-groups", "bernoulli", "markov", "correlated")
"""Processes that are made from p_min as well."""

_FLAGS = {"participation process": "--participation-option", "selection": "--selection-option"}
"""How options are given on the command line."""


def make(name: str, **options: Any) -> Process:
    """Return a participation process by name.

    Parameters
    ----------
    name
        One of `PROCESSES`: "bernoulli", "two-groups", "markov", "cyclic", "correlated", "time-varying",
        "trace", "phones".
    **options
        What the process takes. The processes with fixed marginals take `p` (N numbers, or one with
        `num_clients`) or the paper's two groups (`num_clients`, `p_min`, `share`).
    """
    return _build("participation process", name, PROCESSES, options)


def make_selection(name: str, **options: Any) -> Selection:
    """Return a selection by name: "all", "uniform" (`m`), "fraction" (`f`) or "least-recent" (`m`)."""
    return _build("selection", name, SELECTIONS, options)


def make_estimator(name: str, **options: Any) -> Estimator:
    """Return an estimator by name.

    Parameters
    ----------
    name
        One of `ESTIMATORS`: "known" (`p`), "fedau" (`cutoff`, default 50), "fedau-nocutoff", "beta"
        (`prior_a`, `prior_b`), "forgetting" (`decay`, `prior_a`, `prior_b`) or "daily" (`period`, `bins`, `own`,
        `prior_a`, `prior_b`).
    **options
        What the estimator takes. A largest 1/p̂ is a bound around the rule: `rules.Guarded(rule, max_weight=…)`.
    """
    return _build("estimator", name, ESTIMATORS, options)


def takes_p_min(process: object, options: Mapping[str, object]) -> bool:
    """Whether p_min, the probability of the rare half, says who comes: not where every client has a p of its own.

    Parameters
    ----------
    process
        Its name; an object or its config takes none.
    options
        Of the process.
    """
    return isinstance(process, str) and process in _TWO_GROUPS and "p" not in options


def _build(kind: str, name: str, table: dict[str, Callable[..., T]], options: dict[str, Any]) -> T:
    maker = choose(kind, name, table)
    parameters = inspect.signature(maker).parameters
    for option in options:
        if option not in parameters:
            raise unknown(f"option of {kind} {name!r}:", option, parameters or ["none"])
    for option, parameter in parameters.items():
        if parameter.default is inspect.Parameter.empty and option not in options:
            flag = _FLAGS.get(kind)
            typed = f" (on the command line: {flag} {option}=…)" if flag else ""
            raise fail(option, None, f"must be given for {kind} {name!r}{typed}")
    return maker(**options)


def _marginals(
    num_clients: int | None, p: ArrayLike | None, p_min: float | None, share: float
) -> tuple[ArrayLike, Ints | None]:
    """Return (p, groups or None) from either way of saying it."""
    if (p is None) == (p_min is None):
        raise fail("p", p, "give either p or p_min (the paper's two groups), not both")
    if p_min is not None:
        if num_clients is None:
            raise fail("num_clients", None, "must be given with p_min")
        return two_groups(num_clients, p_min, share)
    if np.ndim(p) == 0:  # type: ignore[arg-type]
        if num_clients is None:
            raise fail("num_clients", None, "must be given with a single p")
        return np.full(client_count("num_clients", num_clients), p), None
    values: Float = np.asarray(p)
    if num_clients is not None and values.size != num_clients:
        raise fail("num_clients", num_clients, f"p has {values.size} numbers, one per client")
    return values, None


def _bernoulli(
    num_clients: int | None = None, p: ArrayLike | None = None, p_min: float | None = None, share: float = 0.5
) -> Process:
    marginals, labels = _marginals(num_clients, p, p_min, share)
    return Bernoulli(marginals, labels=labels)


def _markov(
    correlation: ArrayLike,
    num_clients: int | None = None,
    p: ArrayLike | None = None,
    p_min: float | None = None,
    share: float = 0.5,
) -> Process:
    marginals, labels = _marginals(num_clients, p, p_min, share)
    return Markov(marginals, correlation, labels=labels)


def _correlated(
    correlation: float,
    num_clients: int | None = None,
    p: ArrayLike | None = None,
    p_min: float | None = None,
    share: float = 0.5,
    groups: ArrayLike | None = None,
) -> Process:
    marginals, labels = _marginals(num_clients, p, p_min, share)
    return Correlated(marginals, correlation, groups, labels=labels)


def _time_varying(
    rounds: ArrayLike,
    values: ArrayLike,
    num_clients: int | None = None,
    kind: Literal["constant", "linear"] = "constant",
    horizon: int | None = None,
) -> Process:
    return TimeVarying.table(rounds, values, num_clients=num_clients, kind=kind, horizon=horizon)


def _trace(
    path: str | Path,
    num_clients: int | None = None,
    num_rounds: int | None = None,
    repeat: bool = False,
    round: str | float | None = None,
    unit: str | None = None,
) -> Process:
    return Trace.from_csv(path, num_clients, num_rounds=num_rounds, repeat=repeat, round=round, unit=unit)


def _fedau_nocutoff() -> Estimator:
    return FedAUEstimator(cutoff=None)


PROCESSES: dict[str, Callable[..., Process]] = {
    "bernoulli": _bernoulli,
    "two-groups": Bernoulli.two_groups,
    "markov": _markov,
    "cyclic": Cyclic.spread,
    "correlated": _correlated,
    "time-varying": _time_varying,
    "trace": _trace,
    "phones": phones,
}
SELECTIONS: dict[str, Callable[..., Selection]] = {
    "all": All,
    "uniform": UniformSample,
    "fraction": Fraction,
    "least-recent": LeastRecent,
}
ESTIMATORS: dict[str, Callable[..., Estimator]] = {
    "known": KnownProbabilities,
    "fedau": FedAUEstimator,
    "fedau-nocutoff": _fedau_nocutoff,
    "beta": BetaFrequency,
    "forgetting": Forgetting,
    "daily": DailyFrequency,
}
