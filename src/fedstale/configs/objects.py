"""What a user may pass, as JSON and back: rules, β, estimators, participation, tasks, local training.

An object is written with the name of its class and all of its fields, whatever is inside it likewise:

    {"class": "FedStale", "server_lr": 1.0, "beta": {"class": "Auto", "forget": 0.9, "start": 0.0}}

Arrays are lists, a table {round: β} has its rounds as text, and None is "none" where it is not the default (TOML has no
word for it). What cannot be written (a function, a class of the user's own, a very long array) is *named* instead,
{"not written": "mymodule.MyRule", …}, and `from_config` refuses to guess what it was.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

import numpy as np

from .. import beta as betas
from .. import participation as who
from .. import rules
from .. import theta as thetas
from ..checks import InvalidInput, choose, fail, unknown
from ..tasks.quadratic import Quadratic
from ..training.local import LocalTraining

Config = Any
"""JSON types: None, bool, int, float, str, lists and dicts with text as keys."""

_CLASS, _NOT_WRITTEN = "class", "not written"
NONE = "none"
_LONGEST = 100_000
"""Numbers in an array; a longer one is not written: every list of runs would read it."""
_DEEPEST = 20
_TEXT = 200

CLASSES: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        *rules.RULES.values(),
        *rules.OPTIMIZERS.values(),
        rules.Guarded,
        rules.Robust,
        betas.Constant,
        betas.Schedule,
        *betas.NAMES.values(),
        thetas.ConstantTheta,
        thetas.AutoTheta,
        who.KnownProbabilities,
        who.FedAUEstimator,
        who.BetaFrequency,
        who.Forgetting,
        who.DailyFrequency,
        who.Bernoulli,
        who.Markov,
        who.Correlated,
        who.Cyclic,
        who.TimeVarying,
        who.Breakpoints,
        who.Trace,
        who.Bootstrap,
        who.DailyMarkov,
        who.All,
        who.UniformSample,
        who.Fraction,
        who.LeastRecent,
        who.Participation,
        Quadratic,
        LocalTraining,
    )
}
"""Everything that can be written. The tests fail for a class of the library that is missing here."""


def to_config(value: Any) -> Config:
    """Write an object; see the module."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None:
        return NONE
    if isinstance(value, (bool, int, str)) or (isinstance(value, float) and np.isfinite(value)):
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf" and value.size <= _LONGEST:
        return value.tolist()
    if isinstance(value, Mapping) and value and all(isinstance(key, (int, np.integer)) for key in value):
        return {str(int(key)): to_config(value[key]) for key in sorted(value)}
    if isinstance(value, (list, tuple)) and len(value) <= _LONGEST:
        return [to_config(inner) for inner in value]
    if CLASSES.get(type(value).__name__) is type(value):
        return {_CLASS: type(value).__name__, **written_fields(value)}
    return _named(value)


def from_config(config: Config, argument: str = "config") -> Any:
    """Make the object again; `argument` is what an error calls it, and what must be given where it was not written."""
    return _made(config, argument, 0)


def whole(config: Config) -> bool:
    """Whether everything in a config was written."""
    return next(unwritten(config), None) is None


def unwritten(config: Config) -> Iterator[str]:
    """Yield the names of what was not written."""
    if isinstance(config, Mapping):
        if _NOT_WRITTEN in config:
            yield str(config[_NOT_WRITTEN])
            return
        config = list(config.values())
    if isinstance(config, (list, tuple)):
        for inner in config:
            if isinstance(inner, (Mapping, list, tuple)):
                yield from unwritten(inner)


def not_whole(argument: str, config: Config) -> InvalidInput:
    """Build the error for something that was not written (raise what it returns)."""
    names = ", ".join(dict.fromkeys(unwritten(config)))
    return fail(argument, names, f"was not saved with the run: pass the object again, resume(run, {argument}=…)")


def check_same(argument: str, recorded: Config, given: Any) -> None:
    """Refuse an object that contradicts its record; what was not written is compared by its name and known values."""
    if not agree(recorded, to_config(given)):
        raise fail(argument, given, f"the run was made with {text(recorded)}")


def same(a: Any, b: Any) -> bool:
    """Whether two objects are equal field by field, arrays and what is inside included."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.shape(a) == np.shape(b) and np.asarray(a).dtype == np.asarray(b).dtype and bool(np.all(a == b))
    if is_dataclass(a) and type(a) is type(b):
        return all(same(getattr(a, field.name), getattr(b, field.name)) for field in _init(a))
    return type(a) is type(b) and bool(a == b)


def text(config: Config) -> str:
    """A config, or any other value of a setting, in one readable line: Auto(forget=0.9), {0: 0, 10: 1}, mu 0.1."""
    if isinstance(config, Mapping):
        if _NOT_WRITTEN in config:
            return str(config.get("text") or config[_NOT_WRITTEN])
        if config and all(str(key).isdigit() for key in config):
            return "{" + ", ".join(f"{key}: {text(value)}" for key, value in config.items()) + "}"
        if _CLASS not in config:
            return ", ".join(f"{key} {text(value)}" for key, value in config.items()) or "–"
        kind = CLASSES.get(str(config[_CLASS]))
        usual = {} if kind is None else {field.name: field.default for field in fields(kind)}
        shown = (f"{key}={text(value)}" for key, value in config.items() if key != _CLASS and usual.get(key) != value)
        return f"{config[_CLASS]}({', '.join(shown)})"
    if isinstance(config, (list, tuple)):
        if len(config) > 1 and all(value == config[0] for value in config):
            return text(config[0])
        return f"[{', '.join(map(text, config))}]" if len(config) <= 3 else f"{len(config):,} numbers"
    return "–" if config is None else f"{config:g}" if isinstance(config, float) else str(config)


def _init(value: Any) -> list[Field[Any]]:
    return [field for field in fields(value) if field.init]


def written_fields(value: Any) -> dict[str, Config]:
    """The fields of a dataclass as a config; None where it is the default stays out."""
    pairs = ((field, getattr(value, field.name)) for field in _init(value))
    return {field.name: to_config(inner) for field, inner in pairs if inner is not None or field.default is not None}


def _named(value: Any) -> dict[str, Config]:
    """Name what cannot be written, with what can be said of it: enough to notice another one, not to make it again."""
    kind = value if hasattr(value, "__qualname__") else type(value)
    named: dict[str, Config] = {_NOT_WRITTEN: f"{kind.__module__}.{kind.__qualname__}"}
    if kind is value:
        return named
    if hasattr(value, "fingerprint"):  # a task with data
        return {**named, "text": str(value.name), "values": {"fingerprint": value.fingerprint(), **value.learning()}}
    named_itself = isinstance(value, rules.Rule) and "name" in vars(type(value))  # and has not inherited a name
    shown = _own_rule(value) if named_itself else " ".join(repr(value).split())
    shown = re.sub(r" at 0x[0-9a-f]+", "", shown)
    named["text"] = shown if len(shown) <= _TEXT else shown[: _TEXT - 1] + "…"
    if isinstance(value, np.ndarray):
        named["values"] = {"fingerprint": hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()}
    elif is_dataclass(value):
        named["values"] = written_fields(value)
    return named


def _own_rule(rule: rules.Rule) -> str:
    """A rule of the user's own as tables have it: its name, and the options that are not at their defaults."""
    changed = [field.name for field in _init(rule) if getattr(rule, field.name) != field.default]
    options = ", ".join(f"{name}={getattr(rule, name)!r}" for name in changed)
    return f"{rule.name}({options})" if options else rule.name


def agree(recorded: Config, given: Config) -> bool:
    """Whether two configs are of the same object, as far as they say: what was not written by its name and values."""
    if isinstance(recorded, Mapping) and isinstance(given, Mapping):
        if _NOT_WRITTEN in recorded and _NOT_WRITTEN in given:
            names = [str(named[_NOT_WRITTEN]) for named in (recorded, given)]
            if any(name.startswith("__main__.") for name in names):  # the script that is now imported, or the reverse
                names = [name.rpartition(".")[2] for name in names]
            return names[0] == names[1] and agree(recorded.get("values"), given.get("values"))
        return recorded.keys() == given.keys() and all(agree(recorded[key], given[key]) for key in recorded)
    if isinstance(recorded, list) and isinstance(given, list):
        return len(recorded) == len(given) and all(map(agree, recorded, given))
    return bool(recorded == given)


def _made(config: Config, argument: str, depth: int) -> Any:
    if depth > _DEEPEST:
        raise fail(argument, "a config", f"is nested more than {_DEEPEST} deep")
    if isinstance(config, Mapping):
        if _NOT_WRITTEN in config:
            raise not_whole(argument, config)
        if _CLASS in config:
            return _object(config, argument, depth)
        if config and all(re.fullmatch(r"[0-9]{1,18}", str(key)) for key in config):
            return {int(key): _made(value, argument, depth + 1) for key, value in config.items()}
        raise fail(argument, dict(config), f'must have a "{_CLASS}" such as "Auto", or rounds as keys')
    if isinstance(config, (list, tuple)):
        return [_made(value, argument, depth + 1) for value in config]
    return None if config == NONE else config


def _object(config: Mapping[str, Config], argument: str, depth: int) -> Any:
    kind = choose(f"class in {argument}", config[_CLASS], CLASSES)
    known = {field.name: field for field in fields(kind) if field.init}
    for name in config:
        if name != _CLASS and name not in known:
            raise unknown(f"field of {config[_CLASS]}:", name, known or ["none"])
    for name, field in known.items():
        if name not in config and field.default is MISSING and field.default_factory is MISSING:
            raise fail(name, None, f"must be given for {config[_CLASS]} in {argument}")
    values = {name: _made(config[name], argument, depth + 1) for name in config if name != _CLASS}
    try:
        return kind(**values)
    except InvalidInput:
        raise
    except (TypeError, ValueError, AttributeError, OverflowError) as error:  # a field of a type nobody thought of
        raise fail(argument, text(config), f"is not a valid {config[_CLASS]}: {error}") from None
