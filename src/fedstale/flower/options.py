"""What every strategy takes beside its rule, the defaults, and checks; `RuleStrategy` says what each of them means."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from flwr.app import MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

from .. import memory as memories
from ..checks import fail, near_names, number, positive_int
from ..memory.held import NAME as CLIENTS
from ..participation import Selection
from .layout import AVERAGED_BUFFERS
from .probabilities import ProbabilitySpec

if TYPE_CHECKING:
    from flwr.server.workflow import SecAggPlusWorkflow

    from ..store import Store

AggregateMetrics = Callable[[list[RecordDict], str], MetricRecord]


class Options(TypedDict, total=False):
    """What every strategy here takes beside its rule; see `RuleStrategy`."""

    fraction_train: float
    fraction_evaluate: float
    min_train_nodes: int
    min_evaluate_nodes: int
    min_available_nodes: int
    weighted_by_key: str
    arrayrecord_key: str
    configrecord_key: str
    train_metrics_aggr_fn: AggregateMetrics | None
    evaluate_metrics_aggr_fn: AggregateMetrics | None
    probabilities: ProbabilitySpec
    weights: Literal["client", "sample"]
    max_examples_ratio: float | None
    max_norm_ratio: float | None
    halve_rows_every: int | None
    late_for: int
    proximal_mu: float | None
    memory: str
    secure_aggregation: SecAggPlusWorkflow | None
    identity: str
    selection: Selection | int | None
    averaged_buffers: Sequence[str]
    num_clients: int | None
    max_clients: int | None
    forget_after: int | Literal["auto"] | None
    robust: str | None
    clip_norm: float | None
    max_weight: float | None
    max_wait: float | None
    checkpoint: str | Path | None
    checkpoint_every: int
    resume: Literal["never", "auto"]
    store: str | Path | Store | None
    seed: int


_DEFAULTS: Options = {
    "fraction_train": 1.0,
    "fraction_evaluate": 1.0,
    "min_train_nodes": 2,
    "min_evaluate_nodes": 2,
    "min_available_nodes": 2,
    "weighted_by_key": "num-examples",
    "arrayrecord_key": "arrays",
    "configrecord_key": "config",
    "train_metrics_aggr_fn": None,
    "evaluate_metrics_aggr_fn": None,
    "probabilities": "fedau",
    "weights": "sample",
    "max_examples_ratio": 10.0,
    "max_norm_ratio": 10.0,
    "halve_rows_every": 100,
    "late_for": 3,
    "proximal_mu": None,
    "memory": "ram",
    "secure_aggregation": None,
    "identity": "auto",
    "selection": None,
    "averaged_buffers": AVERAGED_BUFFERS,
    "num_clients": None,
    "max_clients": None,
    "forget_after": "auto",
    "robust": None,
    "clip_norm": None,
    "max_weight": None,
    "max_wait": 60.0,
    "checkpoint": None,
    "checkpoint_every": 1,
    "resume": "never",
    "store": None,
    "seed": 0,
}

_IN_ORDER = tuple(inspect.signature(FedAvg.__init__).parameters)[1:]
"""What FedAvg takes without names."""


def in_order(positional: tuple[Any, ...], options: Options) -> Options:
    """Return the options with those that were given without a name, in the order of Flower's FedAvg."""
    if len(positional) > len(_IN_ORDER):
        raise TypeError(f"at most {len(_IN_ORDER)} arguments without names, as FedAvg has, not {len(positional)}")
    named = dict(zip(_IN_ORDER, positional, strict=False))
    if both := named.keys() & options.keys():
        raise TypeError(f"got multiple values for argument {sorted(both)[0]!r}")
    return {**named, **options}  # type: ignore[typeddict-item]


def checked(strategy: type, options: Options) -> Options:
    """Return the options with the defaults; refuse what is unknown or makes no sense by itself."""
    for name in options:
        if name not in _DEFAULTS:
            own = inspect.signature(strategy).parameters.values()
            known = [*_DEFAULTS, *(given.name for given in own if given.kind is given.KEYWORD_ONLY)]
            near = near_names(name, known)
            what = f"{strategy.__name__}() got an unexpected keyword argument {name!r}"
            raise TypeError(f"{what}: {near}" if near else what)
    settings: Options = {**_DEFAULTS, **options}
    for name in ("min_available_nodes", "late_for"):
        positive_int(name, settings[name], 0)  # type: ignore[literal-required]
    positive_int("checkpoint_every", settings["checkpoint_every"])
    if settings["weights"] not in ("client", "sample"):
        raise fail("weights", settings["weights"], 'must be "client" or "sample"')
    if settings["resume"] not in ("never", "auto"):
        raise fail("resume", settings["resume"], 'must be "never" or "auto"')
    if settings["resume"] == "auto" and settings["checkpoint"] is None:
        raise fail("checkpoint", None, 'resume="auto" needs the folder of the checkpoint')
    memories.parse(settings["memory"])
    _check_held(settings, options)
    if settings["forget_after"] != "auto" and settings["forget_after"] is not None:
        positive_int("forget_after", settings["forget_after"])
        if memories.approximate(settings["memory"]) is not None:
            what = (
                f"cannot be had with memory={settings['memory']!r}: {memories.MIXED}. Use a memory with rows, or None"
            )
            raise fail("forget_after", settings["forget_after"], what)
    for name in ("num_clients", "max_clients", "halve_rows_every"):
        if settings[name] is not None:  # type: ignore[literal-required]
            positive_int(name, settings[name])  # type: ignore[literal-required]
    if settings["proximal_mu"] is not None:
        number("proximal_mu", settings["proximal_mu"], 0.0)
    wait: Any = settings["max_wait"]
    if wait is not None and (isinstance(wait, bool) or not isinstance(wait, Real) or not float(wait) >= 0):
        raise fail("max_wait", wait, "must be a number of seconds, or None to wait for ever")
    patterns: Any = settings["averaged_buffers"]
    if not isinstance(patterns, (list, tuple)) or not all(isinstance(pattern, str) for pattern in patterns):
        raise fail("averaged_buffers", patterns, 'must be a list of patterns of names, such as ["*running_mean"]')
    for name in ("train_metrics_aggr_fn", "evaluate_metrics_aggr_fn"):
        function: Any = settings[name]  # type: ignore[literal-required]
        if function is not None and not callable(function):
            raise fail(name, function, "must be a function of the replies' contents and weighted_by_key, or None")
    for name in ("max_norm_ratio", "max_examples_ratio"):
        if settings[name] is not None:  # type: ignore[literal-required]
            number(name, settings[name], 1.0)  # type: ignore[literal-required]
    return settings


def _check_held(settings: Options, given: Options) -> None:
    """Refuse what the server cannot do where the clients hold the memory, and what only works there."""
    held, workflow = settings["memory"] == CLIENTS, settings["secure_aggregation"]
    if workflow is not None and not held:
        what = f'needs memory="{CLIENTS}": a server that keeps stale updates must see each of them'
        raise fail("secure_aggregation", type(workflow).__name__, what)
    if workflow is not None and not hasattr(workflow, "quantization_range"):
        raise fail("secure_aggregation", workflow, "must be a flwr.server.workflow.SecAggPlusWorkflow")
    if held and given.get("max_norm_ratio") is not None:
        what = f'cannot be had with memory="{CLIENTS}": the server sees no update whose length it could compare'
        raise fail("max_norm_ratio", given["max_norm_ratio"], what)
    if held and given.get("robust") is not None:
        what = f'cannot be had with memory="{CLIENTS}": the server sees no update that it could compare with others'
        raise fail("robust", given["robust"], what)
    if held and given.get("late_for"):
        raise fail("late_for", given["late_for"], f'must be 0 with memory="{CLIENTS}": what comes late was not counted')
    if held:
        settings["max_norm_ratio"], settings["late_for"] = None, 0
