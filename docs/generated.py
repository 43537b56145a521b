"""The parts of the reference that are made from the program itself and that no extension of Sphinx makes.

A page has a line `<!-- generated: NAME -->`; when the page is read, `expand` puts the Markdown of `PARTS[NAME]()` in
its place: the settings as a table with what is allowed, the registries, and names that autodoc passes over since their
package only passes them on (`shortcuts`, `constants`). The command line is sphinx-click's, which reads typer's commands
as long as typer stands on click: until 0.26. (sphinxcontrib-typer needs that version; Flower needs one before 0.21.)
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import typer.main

from fedstale.cli.app import app

MARK = re.compile(r"^<!-- generated: ([a-z-]+)(?: ([a-zA-Z_./* -]+))? -->$", flags=re.MULTILINE)

_PAGES = re.findall(r"^api/(\w+)$", (Path(__file__).parent / "reference/index.md").read_text("utf-8"), re.MULTILINE)
PACKAGES = ("fedstale", *(f"fedstale.{name}" for name in _PAGES if name != "fedstale"))
"""What the reference of the library covers, in the order of its pages."""
command = typer.main.get_command(app)
"""What sphinx-click describes."""


def expand(text: str) -> str:
    """Put the generated parts in the place of their marks."""
    return MARK.sub(lambda match: PARTS[match[1]](*match.groups()[1:] if match[2] else ()), text)


def public_names(package: str) -> list[str]:
    """The public names of a package: its `__all__`, or what it defines itself (in its modules, for the paper's)."""
    module = import_module(package)
    if hasattr(module, "__all__"):
        return [name for name in module.__all__ if not inspect.ismodule(getattr(module, name))]
    return [name for name, value in vars(module).items() if _own(name, value, package)]


def modules(package: str) -> list[str]:
    """The modules of a package that speak for themselves, because the package lists no names."""
    import pkgutil

    module = import_module(package)
    if hasattr(module, "__all__") or not hasattr(module, "__path__"):
        return [package]
    return [f"{package}.{found.name}" for found in pkgutil.iter_modules(module.__path__)]


def _own(name: str, value: Any, module: str) -> bool:
    kind = inspect.isclass(value) or inspect.isfunction(value)
    return not name.startswith("_") and kind and value.__module__ == module


# Markdown


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; a bar inside a cell is escaped, a line end becomes a space."""
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    cells = ([" ".join(cell.split()).replace("|", "\\|") or " " for cell in row] for row in rows)
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in cells)])


def code(text: object) -> str:
    """Text as inline code; nothing stays nothing."""
    return f"`{text}`" if str(text) else ""


def first_line(thing: object) -> str:
    """The first paragraph of a docstring."""
    return plain((inspect.getdoc(thing) or "").partition("\n\n")[0])


def plain(text: str) -> str:
    """Text for a table cell: what Markdown would read as markup is escaped, code in backticks is left."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(part if part.startswith("`") else re.sub(r"([*_<\[\]])", r"\\\1", part) for part in parts)


# Settings


def settings() -> str:
    """Every key of a run's settings: name, type, default, what is allowed, meaning."""
    from fedstale.simulation.settings import Settings

    rows = []
    for name, field in Settings.model_fields.items():
        default = field.get_default(call_default_factory=True)
        shown = "" if default is None else code({}) if default == {} else code(repr(default).replace("'", '"'))
        rows.append((code(name), _type(field.annotation), shown, _allowed(field), plain(field.description or "")))
    return table(["key", "type", "default", "allowed", "meaning"], rows)


def _type(annotation: Any) -> str:
    if get_origin(annotation) in (Union, types.UnionType):
        return " or ".join(_type(part) for part in get_args(annotation) if part is not type(None))
    if get_origin(annotation) is Literal:
        return "text"
    names: dict[Any, str] = {str: "text", int: "integer", float: "number", bool: "true or false"}
    return names.get(annotation, "table")


def _allowed(field: Any) -> str:
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    limits = [
        f"{sign} {getattr(limit, name):g}"
        for limit in field.metadata
        for name, sign in signs.items()
        if hasattr(limit, name)
    ]
    choices = [code(f'"{choice}"') for choice in get_args(field.annotation) if get_origin(field.annotation) is Literal]
    return ", ".join(limits + choices)


# Registries


def registries() -> str:
    """Every name that a setting may have."""
    from fedstale import beta, memory, participation, rules, tasks
    from fedstale.paper.reproduce import WHAT
    from fedstale.tasks.catalogue import TASKS
    from fedstale.tasks.defaults import ALIASES
    from fedstale.tasks.partition import OPTIONS
    from fedstale.tasks.sources import DATA_SETS
    from fedstale.training.registry import ENGINES

    rule_rows = [
        (
            code(name),
            first_line(rule),
            _options(rule, ("server_lr",)),
            "yes" if rule.memory else "",
            "yes" if rule.unbiased else "",
        )
        for name, rule in rules.RULES.items()
    ]
    task_rows = [
        (
            code(name),
            recipe.data,
            f"{sum(p.numel() for p in recipe.model().parameters()):,}",
            f"{recipe.default_lr:g}",
            ", ".join(f"{rate:.3g}" for rate in recipe.lr_grid),
            str(recipe.batch_size),
        )
        for name, recipe in TASKS.items()
    ]
    engines = {name: first_line(engine) for name, engine in ENGINES.items()}
    parts = [
        ("Rules", "`rule`; `fedstale.rules.make(NAME)`. Every rule takes `server_lr`, too."),
        table(["name", "what it does", "options", "memory", "unbiased"], rule_rows),
        ("Server optimisers", "`rule = NAME+OPTIMISER`, as in `fedstale+adam`."),
        _named({f"+{name}": kind for name, kind in rules.OPTIMIZERS.items()}, leave_out=("rule",)),
        ("β", "`beta`; also a number in [0, 1], in Python a table or a function of the round."),
        _named(beta.NAMES),
        ("Memory", f"`memory`: {memory.ALLOWED}."),
        table(
            ["precision", "bytes a number"],
            [(code(name), str(kind.dtype.itemsize)) for name, kind in memory.PRECISIONS.items()],
        ),
        ("Participation processes", "`participation`, with `participation_options`."),
        _named(participation.PROCESSES),
        ("Selections", "`selection`, with `selection_options`."),
        _named(participation.SELECTIONS),
        ("Estimators of p", "`probabilities`; in Python `fedstale.participation.make_estimator(NAME)`."),
        _named(participation.ESTIMATORS),
        ("Tasks", "`task`; also " + ", ".join(f"`{a}` for `{b}`" for a, b in ALIASES.items()) + ", and `quadratic`."),
        table(["name", "data", "parameters", "rate", "rates it is tuned on", "batch"], task_rows),
        ("Data sets", "`fedstale data fetch NAME`."),
        table(
            ["name", "what", "train", "test"],
            [(code(d.name), d.summary, f"{d.train:,}", f"{d.test:,}") for d in DATA_SETS.values()],
        ),
        ("Partitions", "`partition`, with `partition_options`."),
        table(["name", "options"], [(code(n), ", ".join(map(code, o))) for n, o in OPTIONS.items()]),
        ("Engines", "`engine`."),
        table(["name", "what it does"], [(code(name), text) for name, text in engines.items()]),
        ("Figures", "`fedstale reproduce NAME`."),
        ", ".join(code(name) for name in WHAT),
    ]
    assert tasks.names() == tuple(TASKS)
    return "\n\n".join(part if isinstance(part, str) else f"## {part[0]}\n\n{part[1]}" for part in parts)


def _named(registry: dict[str, Any], leave_out: tuple[str, ...] = ()) -> str:
    rows = [(code(name), _about(made), _options(made, leave_out)) for name, made in registry.items()]
    return table(["name", "what it does", "options"], rows)


def _about(made: Any) -> str:
    """A maker's own docstring, or that of the class it makes."""
    text = first_line(made)
    if not text and inspect.isfunction(made):
        source = inspect.getsource(made)
        built = re.search(r"return (\w+)", source)
        text = first_line(made.__globals__[built[1]]) if built else ""
    return text


def _options(made: Any, leave_out: tuple[str, ...] = ()) -> str:
    if inspect.isclass(made) and is_dataclass(made):
        given = {f.name: f.default for f in fields(made) if f.init}
        shown = [name if value is MISSING else f"{name}={value!r}" for name, value in given.items()]
    else:
        parameters = inspect.signature(made).parameters.values()
        shown = [p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in parameters]
    return ", ".join(code(text.replace("'", '"')) for text in shown if text.partition("=")[0] not in leave_out)


# The library


def page_of(module: str) -> str:
    """The page of the package that a module belongs to."""
    return next(package for package in reversed(PACKAGES) if f"{module}.".startswith(f"{package}.")).rpartition(".")[2]


def package(module: str) -> str:
    """The names of a package, with the pages of its classes."""
    import class_pages

    return class_pages.package(module)


def shortcuts() -> str:
    """The names of `fedstale` itself that live in a package: where each is described."""
    import fedstale

    rows = []
    for name in public_names("fedstale"):
        owner = home(getattr(fedstale, name))
        if owner != "fedstale":
            rows.append((f"`fedstale.{name}`", f"{{py:obj}}`{owner}.{name}`"))
    return table(["name", "described at"], rows)


def paper_modules() -> str:
    """One section for each module of `fedstale.paper`."""
    return "\n\n".join(f"## {module.rpartition('.')[2]}\n\n{package(module)}" for module in modules("fedstale.paper"))


def constants(package: str) -> str:
    """The public names of a package that are neither classes nor functions, with what they hold."""
    module = import_module(package)
    parts = []
    for name in public_names(package):
        value = getattr(module, name)
        if not (inspect.isclass(value) or inspect.isroutine(value)):
            holds = (
                ", ".join(str(getattr(one, "name", one)) for one in value)
                if isinstance(value, dict | tuple)
                else repr(value)
            )
            about = f"By name: {holds}." if isinstance(value, dict) else f"{holds}"
            parts.append(f".. py:data:: {name}\n   :type: {type(value).__name__}\n\n   {about}\n")
    return f"```{{eval-rst}}\n.. py:currentmodule:: {package}\n\n" + "\n".join(parts) + "```"


def home(thing: Any) -> str:
    """The package whose page describes a thing."""
    module = str(getattr(thing, "__module__", "fedstale"))
    owners = [package for package in PACKAGES if package != "fedstale" and module.startswith(package + ".")]
    return max(owners, key=len) if owners else "fedstale"


PARTS: dict[str, Callable[..., str]] = {
    "settings": settings,
    "registries": registries,
    "constants": constants,
    "package": package,
    "paper-modules": paper_modules,
    "shortcuts": shortcuts,
}
