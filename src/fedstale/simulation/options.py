"""The keywords of `simulate` and `compare`: every setting with its type, for editors, notebooks and `help`.

An editor reads `RunOptions`; Python's own `inspect.signature`, which notebooks and `help` ask, is given the same names
with the defaults of `Settings`. A test holds the two together.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar

from .settings import Settings

if TYPE_CHECKING:
    from ..beta import Beta
    from ..clock import Devices, Server
    from ..participation import Estimator, Selection

_Function = TypeVar("_Function", bound=Callable[..., Any])


class RunOptions(TypedDict, total=False):
    """Settings by keyword, as `Settings` describes them; some take an object in place of a name."""

    num_clients: int
    share: float | None
    partition: str
    partition_options: Mapping[str, Any]
    swap: float
    beta: float | str | Mapping[Any, Any] | Beta | None
    rule_options: Mapping[str, Any]
    server_lr: float
    clip_norm: float | None
    max_weight: float | None
    bad_updates: Literal["diverge", "leave-out"]
    weights: Literal["client", "sample"]
    memory: str
    p_min: float
    participation_options: Mapping[str, Any]
    selection: str | Mapping[str, Any] | Selection
    selection_options: Mapping[str, Any]
    probabilities: str | Mapping[str, Any] | Estimator
    server: str | Server
    server_options: Mapping[str, Any]
    deadline: float | None
    devices: str | Devices
    device_options: Mapping[str, Any]
    slot_seconds: float | None
    model_bytes: float | None
    until_seconds: float | None
    rounds: int | None
    seed: int
    lr: float | None
    local_steps: int | None
    epochs: int | None
    batch_size: int | None
    replacement: bool | None
    momentum: float
    weight_decay: float
    schedule: str
    optimizer: str | None
    optimizer_options: Mapping[str, Any]
    clip_gradient: float | None
    engine: str
    precision: str
    device: str
    threads: int | None
    workers: int | None
    ray_address: str | None
    gpus_per_worker: float
    keep_freed_memory: bool
    evaluate_every: int | None
    objective: bool
    train_loss: bool
    quantiles: int | list[int] | None
    per_client: bool
    memory_error: bool
    update_noise: int


def with_options(function: _Function) -> _Function:
    """Show the settings in the signature that a function takes as `**options`, with their defaults."""
    plain = inspect.signature(function)
    own = [one for one in plain.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    taken = {one.name for one in own}
    more = [_parameter(name) for name in RunOptions.__annotations__ if name not in taken]
    function.__signature__ = plain.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
    return function


def _parameter(name: str) -> inspect.Parameter:
    default = Settings.model_fields[name].get_default(call_default_factory=True)
    type_ = RunOptions.__annotations__[name].__forward_arg__
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=type_)
