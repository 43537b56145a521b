"""Every setting of a run in one place: what a TOML file holds, what the command line sets, what the store keeps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from .. import beta as betas
from .. import clock, configs, rules
from .. import participation as who
from ..analysis import method_label
from ..checks import MOST_CLIENTS, MOST_ROUNDS, InvalidInput, choose, fail, unknown
from ..tasks.defaults import CLIENTS, full_name

_MOST_DEFAULT_ROUNDS = 1_000_000
"""More rounds than this must be asked for by number, not by 10/p_min."""
ROUNDS = "rounds"
"""The server of a run in which time plays no part."""
TIME_SETTINGS = (
    *("server_options", "deadline", "devices", "device_options", "slot_seconds", "model_bytes", "until_seconds"),
)
"""Settings that mean something only where it does."""
WHERE = ("workers", "ray_address")
"""Settings that say where a run is computed: on another cluster it is the same run."""
DEFAULT_TASK = "digits-mlp"
"""What is learned unless something else is asked for."""
_MOST_QUANTILES = 100
_MOST_STEPS = 1_000_000
"""More local steps, epochs or samples of a batch than anybody means."""


class Settings(BaseModel):
    """A run's settings. Defaults are the paper's set-up (Section 5) on the embedded digits."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    task: str | dict[str, Any] = Field(
        DEFAULT_TASK, description="the task to learn; `fedstale data list` shows the data sets"
    )
    num_clients: int = Field(24, ge=1, le=MOST_CLIENTS, description="number of clients N")
    share: float | None = Field(None, gt=0, le=1, description="fraction of the data to use; default: the task's")
    partition: str = Field("iid", description="split of the samples: iid, dirichlet or pathological")
    partition_options: dict[str, Any] = Field(
        default_factory=dict, description="options of the partition: alpha or classes_per_client"
    )
    swap: float = Field(0.0, ge=0, le=1, description="fraction of two labels to swap in the rare group (σ̂_g²)")

    rule: str | dict[str, Any] = Field(
        rules.DEFAULT,
        description='aggregation rule, fedstale where only beta is given; append "+adam" or another server optimiser',
    )
    beta: float | str | dict[str, Any] | None = Field(
        None,
        description='FedStale: β in [0, 1], "auto", "auto-per-client", "theory", a table {round = beta}',
    )
    rule_options: dict[str, Any] = Field(default_factory=dict, description="further options of the rule, such as mu")
    server_lr: float = Field(
        1.0, gt=0, description="server learning rate η_s; at 1, adaptive server optimisers use their own"
    )
    clip_norm: float | None = Field(None, gt=0, description="clip client updates to this ℓ2 norm; default: no clipping")
    max_weight: float | None = Field(None, ge=1, description="upper bound on a client's weight 1/p; default: none")
    bad_updates: Literal["diverge", "leave-out"] = Field(
        "diverge", description='on a non-finite update, "diverge" ends the run, "leave-out" skips the client'
    )
    weights: Literal["client", "sample"] = Field(
        "client", description='weights α_i: "client" (equal) or "sample" (by size)'
    )
    memory: str = Field(
        "ram",
        description='store of stale updates: "ram", "ram:bfloat16", "disk", "disk:FOLDER", "clustered:K", "lowrank:K"',
    )

    participation: str | dict[str, Any] = Field(
        "two-groups", description="availability process: who shows up in a round"
    )
    p_min: float = Field(0.1, gt=0, le=1, description="participation probability of the rare half of the clients")
    participation_options: dict[str, Any] = Field(
        default_factory=dict,
        description="further options of the availability process, such as p=12x1,12x0.1 of bernoulli",
    )
    selection: str | dict[str, Any] = Field("all", description="how the server selects among available clients")
    selection_options: dict[str, Any] = Field(default_factory=dict, description="options of the selection, such as m")
    probabilities: str | dict[str, Any] = Field(
        "known", description="source of the p_i: known, fedau, fedau-nocutoff, beta, forgetting or daily"
    )

    server: str = Field(
        ROUNDS,
        description='when the server steps: "rounds" (no time), "synchronous", "buffered" or "asynchronous"',
    )
    server_options: dict[str, Any] = Field(
        default_factory=dict, description="options of the server: wait_for, over_select, late, size, concurrency"
    )
    deadline: float | None = Field(
        None, gt=0, description="virtual seconds after which a server steps with the replies it has; default: it waits"
    )
    devices: str = Field("equal", description="speeds of the devices: equal, two-classes, log-normal or measured")
    device_options: dict[str, Any] = Field(
        default_factory=dict, description="options of the devices, such as steps_per_second, slowdown, spread"
    )
    slot_seconds: float | None = Field(
        None, gt=0, description="virtual seconds that a round of the availability process lasts; default: see the docs"
    )
    model_bytes: float | None = Field(
        None, gt=0, description="bytes of a model on its way; default: those of the model that is trained"
    )
    until_seconds: float | None = Field(None, gt=0, description="virtual seconds after which the run ends")

    rounds: int | None = Field(None, ge=1, lt=MOST_ROUNDS, description="number of rounds T; default: 10/p_min")
    seed: int = Field(0, ge=0, lt=2**63, description="random seed: participation, batches, partition, initial model")
    lr: float | None = Field(None, gt=0, description="client learning rate η_c; default: the task's")
    local_steps: int | None = Field(
        None, ge=1, le=_MOST_STEPS, description="number of local steps K; default: the task's"
    )
    epochs: int | None = Field(None, ge=1, le=_MOST_STEPS, description="local epochs instead of local steps")
    batch_size: int | None = Field(None, ge=1, le=_MOST_STEPS, description="local batch size; default: the task's")
    replacement: bool | None = Field(None, description="draw batches with replacement; default: the engine's")
    momentum: float = Field(0.0, ge=0, lt=1, description="momentum of local SGD")
    weight_decay: float = Field(0.0, ge=0, description="weight decay of local SGD; the authors' code uses 5e-4")
    schedule: str = Field(
        "constant", description="schedule of η_c: constant, cosine:T, step:EVERY:FACTOR or inverse-sqrt"
    )
    optimizer: str | None = Field(
        None, description="optimiser of the clients: sgd, or another of torch's such as adam; default: the task's"
    )
    optimizer_options: dict[str, Any] = Field(
        default_factory=dict, description="options of the clients' optimiser, such as betas or eps"
    )
    clip_gradient: float | None = Field(
        None, gt=0, description="clip gradients of local steps to this ℓ2 norm; default: no clipping"
    )

    engine: str = Field("auto", description="training engine: loop, vmap, auto (by the model), fastest (timed) or ray")
    precision: str = Field("float32", description="precision of local training: float32 or bfloat16")
    device: str = Field("cpu", description="device of local training: cpu or cuda")
    threads: int | None = Field(
        None, ge=1, le=1024, description="clients trained in parallel on the CPU; does not change results"
    )
    workers: int | None = Field(
        None, ge=1, le=100_000, description="engine ray: number of actors; default: one per processor of the cluster"
    )
    ray_address: str | None = Field(
        None, description='engine ray: address of a cluster, "auto" for one on this machine; default: start one here'
    )
    gpus_per_worker: float = Field(
        0.0, ge=0, le=1024, description="engine ray: GPUs of each actor, which then trains on them; may be a fraction"
    )
    keep_freed_memory: bool = Field(
        True, description="let malloc reuse freed memory: faster on the CPU; applies to the whole process"
    )

    evaluate_every: int | None = Field(
        None,
        ge=1,
        lt=MOST_ROUNDS,
        description="rounds between evaluations; default: 50 a run, and rounds 1, 2, 4, …",
    )
    objective: bool = Field(
        True, description="record the objective Σ α_i F_i over the clients' training data with each evaluation"
    )
    train_loss: bool = Field(False, description="also record the mean training loss of every round")
    quantiles: int | list[int] | None = Field(
        None,
        description="also record how so many groups of clients by p_i fare, most frequent first; "
        "or the group of each client",
    )
    per_client: bool = Field(False, description="also record the accuracy of every client")
    memory_error: bool = Field(
        False, description="also record how far stored updates are from the gradients (H); a pass over all data"
    )
    update_noise: int = Field(
        0,
        ge=0,
        le=1024,
        description="record noise and bias of the update over so many other draws of participants; 0: not at all",
    )

    @model_validator(mode="before")
    @classmethod
    def _written(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        if given.get("rule") is None:  # β is the weight of FedStale: who gives one alone means that rule
            given = {**given, "rule": rules.DEFAULT if given.get("beta") is None else "fedstale"}
        task = full_name(given.get("task"))
        if isinstance(task, str) and (own := CLIENTS.get(task)) is not None:  # a natural federation
            if given.get("num_clients", own) != own:
                raise fail(
                    "num_clients", given["num_clients"], f"{given['task']} has {own} clients, with their own data"
                )
            given = {**given, "num_clients": own}
        log = given.get("participation_options")
        counted = given.get("num_clients") is not None or given.get("participation") != "trace"
        if not counted and isinstance(log, dict) and "path" in log:
            given = {**given, "num_clients": who.make("trace", **log).num_clients}  # as many as the log has
        found = _shortest_form(given)
        if found.get("server", ROUNDS) != ROUNDS and found.get("probabilities") is None:
            found["probabilities"] = "fedau-nocutoff"  # in time, how often clients answer has to be learned
        return found

    @model_validator(mode="after")
    def _consistent(self) -> Settings:
        if self.rounds is None and self.default_rounds > _MOST_DEFAULT_ROUNDS:
            allowed = f"the default, 10/p_min, would be {self.default_rounds:,} rounds; set rounds"
            raise fail("p_min", self.p_min, allowed)
        if self.epochs is not None and self.local_steps is not None:
            raise fail("epochs", self.epochs, "give local_steps or epochs, not both")
        if isinstance(self.quantiles, int) and not 2 <= self.quantiles <= _MOST_QUANTILES:
            raise fail("quantiles", self.quantiles, f"must be from 2 to {_MOST_QUANTILES}")
        for name in (*WHERE, "gpus_per_worker"):
            if self.engine != "ray" and getattr(self, name) != type(self).model_fields[name].default:
                raise fail(name, getattr(self, name), 'is for engine "ray" only')
        for setting, *parts in (
            ("rule", "beta", "rule_options", "server_lr"),
            ("participation", "participation_options"),
            ("selection", "selection_options"),
        ):
            text = configs.text(getattr(self, setting))
            for part in parts if isinstance(getattr(self, setting), dict) else ():
                if getattr(self, part) != type(self).model_fields[part].get_default(call_default_factory=True):
                    raise fail(part, getattr(self, part), f"cannot be combined with {setting} = {text}: set it there")
        if self.server == ROUNDS:
            for name in TIME_SETTINGS:
                if getattr(self, name) != type(self).model_fields[name].get_default(call_default_factory=True):
                    known = ", ".join(clock.SERVERS)
                    raise fail(
                        name, getattr(self, name), f"needs a server that knows time: set server to one of {known}"
                    )
        else:
            self.make_server()
            choose("devices", self.devices, clock.DEVICES)
        return self

    def make_server(self) -> clock.Server:
        """Return the server; only where time plays a part."""
        options = {**self.server_options}
        if "deadline" in options:
            raise fail("server_options", options, "deadline is a setting of its own")
        return clock.make_server(self.server, deadline=self.deadline, **options)

    @property
    def takes_p_min(self) -> bool:
        """Whether p_min says who comes."""
        return who.takes_p_min(self.participation, self.participation_options)

    @property
    def default_rounds(self) -> int:
        """T = 10/p_min."""
        return math.ceil(10 / self.p_min - 1e-9)

    @property
    def total_rounds(self) -> int:
        """The number of rounds T."""
        return self.rounds or self.default_rounds

    @property
    def evaluation_interval(self) -> int:
        """Rounds between two evaluations."""
        return self.evaluate_every or max(1, self.total_rounds // 50)

    @property
    def label(self) -> str:
        """What the run is called in tables and figures."""
        return method_label(self.rule, self.beta, self.memory, self.rule_options, self.server_lr)

    @property
    def task_name(self) -> str:
        """What the task is called in tables and figures."""
        return configs.text(self.task)

    @property
    def unwritten(self) -> dict[str, str]:
        """What could not be written down, by the argument of `resume` that gives it again."""
        found = {}
        for name in ("rule", "participation", "selection", "task", "probabilities"):
            if names := list(configs.unwritten(getattr(self, name))):
                found["participation" if name == "selection" else name] = ", ".join(names)
        return found

    def replace(self, **changes: Any) -> Settings:
        """Return the same settings with some changed."""
        return make_settings(**{**self.model_dump(), **changes})

    def record(self) -> dict[str, Any]:
        """Everything, as JSON types: what the store keeps and a sweep compares."""
        return self.model_dump(mode="json")


def _shortest_form(given: dict[str, Any]) -> dict[str, Any]:
    """Write the objects among the settings, and configs of objects, in the shortest form that says all of them."""
    found = dict(given)
    for name, (fits, wanted, write) in _OBJECTS.items():
        value = found.get(name)
        if isinstance(value, dict):
            if not configs.whole(value):  # it was not written, and so it stays
                continue
            value = configs.from_config(value, name)
            if not fits(value):
                raise fail(name, configs.text(found[name]), f"must be {wanted}")
        if fits(value):
            _merge(name, write(value), found)
    return found


def _merge(name: str, written: dict[str, Any], found: dict[str, Any]) -> None:
    """Take the settings that describe an object; one of its own (β of a rule) must not be given differently, too."""
    for key, value in written.items():
        default = Settings.model_fields[key].get_default(call_default_factory=True)
        given = found.get(key, default)
        if key != name and given not in (default, value):
            if key == "num_clients":
                raise fail(name, f"{value} clients", f"the task has {given}")
            raise fail(
                key, given, f"conflicts with the {name}, which sets it to {configs.text(value)}: give one of them"
            )
        found[key] = value


def _participation(given: who.Process | who.Participation) -> dict[str, Any]:
    both = who.Participation.of(given)
    written = {"participation": configs.short_process(both.availability), "num_clients": both.num_clients}
    with suppress(InvalidInput):  # a schedule without a mean
        p = both.availability.probabilities()
        written["p_min"] = float(max(p[p > 0.0].min(initial=1.0), 1e-9))
    return written if isinstance(given, who.Process) else written | configs.short_selection(both.selection)


def _options(value: clock.Server | clock.Devices) -> dict[str, Any]:
    """Write the fields that are not at their default; the deadline is a setting of its own."""
    mine = [field for field in fields(value) if field.name != "deadline"]
    written = {field.name: configs.to_config(getattr(value, field.name)) for field in mine}
    return {
        field.name: written[field.name] for field in mine if written[field.name] != configs.to_config(field.default)
    }


def _kind(*kinds: type[Any]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds)


_OBJECTS: dict[str, tuple[Callable[[Any], bool], str, Callable[[Any], dict[str, Any]]]] = {
    "task": (
        lambda value: hasattr(value, "num_clients"),  # torch is not imported to look whether it is a Task
        "a task such as Quadratic",
        lambda task: {"task": configs.short_task(task), "num_clients": task.num_clients},
    ),
    "rule": (_kind(rules.Rule), "a rule such as FedStale", configs.short_rule),
    "beta": (
        _kind(betas.Beta, Mapping),
        "a β such as Auto, or a table {round: β}",
        lambda beta: {"beta": configs.short_beta(beta)},
    ),
    "participation": (_kind(who.Process, who.Participation), "a process such as Bernoulli", _participation),
    "selection": (_kind(who.Selection), "a selection such as UniformSample", configs.short_selection),
    "server": (
        _kind(clock.Server),
        "a server such as Buffered",
        lambda server: {"server": server.name, "deadline": server.deadline, "server_options": _options(server)},
    ),
    "devices": (
        _kind(clock.Devices),
        "devices such as LogNormal",
        lambda devices: {"devices": devices.name, "device_options": _options(devices)},
    ),
    "probabilities": (
        _kind(who.Estimator),
        "an estimator such as FedAUEstimator",
        lambda estimator: {"probabilities": configs.short_estimator(estimator)},
    ),
}
"""Settings that may be objects: how to tell, what is wanted, and how one is written."""


def make_settings(**given: Any) -> Settings:
    """Make settings; a wrong one gives one line that names it."""
    for key in given:
        if key not in Settings.model_fields:
            raise unknown("setting", key, Settings.model_fields)
    try:
        return Settings(**given)
    except ValidationError as error:
        first = error.errors()[0]
        wrapped = first.get("ctx", {}).get("error")
        if isinstance(wrapped, InvalidInput):
            raise wrapped from None
        where = ".".join(str(part) for part in first["loc"][:1])
        raise fail(where, first["input"], first["msg"][0].lower() + first["msg"][1:]) from None
