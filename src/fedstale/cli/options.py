"""Options that several commands share: one per setting of a run, made from `Settings` itself."""

from __future__ import annotations

import inspect
import json as jsons
import re
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Optional, Union, get_args, get_origin

import numpy as np
import typer

from ..checks import client_count, fail, number_or_text, printable
from ..simulation.settings import Settings
from ..terminal import fitted
from . import complete
from .names import known

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
StorePath = Annotated[
    Path | None, typer.Option("--store", help="Folder of the store; default FEDSTALE_STORE or ./fedstale-runs.")
]
StoreArgument = Annotated[
    Path | None,
    typer.Argument(metavar="[STORE]", show_default=False),
]
"""The same folder in front of everything else, where a command is about a store as a whole."""
Patience = Annotated[
    float | None,
    typer.Option("--patience", help="Seconds to wait for a store that is locked; default FEDSTALE_PATIENCE or 600."),
]


Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Do not show progress.")]
Wide = Annotated[bool, typer.Option("--wide", help="Show all columns, however wide the terminal is.")]
Target = Annotated[str, typer.Argument(autocompletion=complete.targets)]
Which = Annotated[str, typer.Argument(autocompletion=complete.runs)]
_LIST = re.compile(r"[-+.,ex\d ]*\d[x,][-+.,ex\d ]*", re.IGNORECASE)
"""What is meant as a list of numbers, perhaps with a slip in it."""
_KINDS = {"rule": "rules", "participation": "participation", "selection": "selections"}
"""Settings whose help names everything that they may be."""
_COMPLETE: dict[str, Callable[..., Any]] = {
    "rule": complete.rules,
    "participation": complete.participation,
    "selection": complete.selections,
    "probabilities": complete.estimators,
}


def chosen_store(argument: Path | None, option: Path | None) -> Path | None:
    """Return the store that was given, in whichever way."""
    if argument is not None and option is not None and argument != option:
        raise fail("--store", str(option), f"conflicts with {argument}: give one of them")
    return argument if argument is not None else option


def task_of(target: str) -> Any:
    """Read a task: a name, or the config of a quadratic as JSON."""
    return _config_from_json("task", target) if target.startswith("{") else target


def print_json(value: Any) -> None:
    """Print JSON and nothing else on standard output; numbers that JSON has no word for (NaN, ∞) become null."""
    typer.echo(jsons.dumps(_finite(value), default=str, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    if isinstance(value, (float, np.floating)):
        return float(value) if np.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value


def say(text: object, *, err: bool = False, colour: str | None = None) -> None:
    """Print a line, or several; what came from elsewhere sends no codes to the terminal."""
    typer.secho(fitted(printable(str(text), keep="\n"), err=err), err=err, fg=colour)


def with_settings(*leave_out: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command one option per setting; what the user set arrives as the keyword `changes`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "changes"]
        names = [name for name in Settings.model_fields if name not in leave_out]
        made = [_option(name) for name in names]

        def wrapper(**given: Any) -> None:
            changes = {name: _value(name, given.pop(name)) for name in names if given.get(name) not in (None, [])}
            command(changes=changes, **{key: value for key, value in given.items() if key not in names})

        wrapper.__doc__ = command.__doc__
        wrapper.__name__ = command.__name__
        wrapper.__signature__ = inspect.Signature([*own, *made])  # type: ignore[attr-defined]
        wrapper.__annotations__ = {p.name: p.annotation for p in (*own, *made)}
        return wrapper

    return decorate


def _option(name: str) -> inspect.Parameter:
    field = Settings.model_fields[name]
    flag = f"--{name.replace('_', '-')}"
    kind = _plain_type(field.annotation)
    default = field.get_default(call_default_factory=True)
    described = (field.description or "").replace("[", r"\[")
    sentence = f"{described[:1].upper()}{described[1:]}."
    if name in _KINDS:
        sentence += f" {known(_KINDS[name])}"
    text = sentence if default in (None, {}, "") else rf"{sentence} \[default: {default}]"
    if kind is dict:
        flag, kind, text = (
            flag.removesuffix("s"),
            list[str],
            f"NAME=VALUE. {sentence}",
        )
    elif kind is bool:
        flag = f"{flag}/--no-{name.replace('_', '-')}"
    option = typer.Option(flag, help=text, show_default=False, autocompletion=_COMPLETE.get(name))
    annotation: Any = Annotated[Optional[kind], option]  # noqa: UP045
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _plain_type(annotation: Any) -> Any:
    if get_origin(annotation) in (Union, types.UnionType):
        parts = [part for part in get_args(annotation) if part is not type(None)]
        return str if str in parts or len(parts) > 1 else parts[0]
    if get_origin(annotation) is not None and get_origin(annotation) is not dict:
        return str  # a Literal: pydantic names the choices
    return dict if get_origin(annotation) is dict else annotation


def _value(name: str, given: Any) -> Any:
    if isinstance(given, str) and given.startswith("{"):
        return _config_from_json(name, given)
    if name == "beta":
        return number_or_text(given)
    if name == "quantiles":
        return _option_value(name, given)
    if _plain_type(Settings.model_fields[name].annotation) is dict:
        pairs = {}
        for item in given:
            key, equals, value = item.partition("=")
            if not equals:
                raise fail(name, item, "must have the form NAME=VALUE")
            pairs[key.replace("-", "_")] = _option_value(key, value)
        return pairs
    return given


def _option_value(key: str, text: str) -> Any:
    """Read a number, a list of numbers or text."""
    if text.startswith("["):
        return _config_from_json(key, text)
    return numbers(key, text) if _LIST.fullmatch(text) else number_or_text(text)


def numbers(option: str, text: str) -> list[float]:
    """Read numbers, one for each client: "1,1,0.1" or "12x1,12x0.1"."""
    values: list[float] = []
    for part in text.split(","):
        count, times, value = part.strip().rpartition("x")
        try:
            many, number = int(count) if times else 1, float(value)
        except ValueError:
            raise fail(option, text, 'must be numbers such as "1,1,0.1" or "12x1,12x0.1"') from None
        values += [number] * (client_count(option, len(values) + max(many, 0), 0) - len(values))
    return values


def _config_from_json(name: str, text: str) -> Any:
    """Read an object's config where a name would not do: --beta '{"0": 0, "10": 1}'."""
    try:
        return jsons.loads(text)
    except (ValueError, RecursionError) as error:
        raise fail(name, text, f"is not JSON: {error}") from None
