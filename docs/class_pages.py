"""The reference of the library: a page per package with a table of its names, and a page per class with an example.

The pages of the classes are written into reference/classes before Sphinx looks for pages, from `PACKAGES` and what each
exports. Their examples are sessions in reference/examples/PACKAGE.txt, under the names of the classes that they show
(`[FedAvg, UnbiasedFedAvg]`); tests/docs/test_examples.py runs them, and says which class has none.
"""

from __future__ import annotations

import inspect
import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import generated

HERE = Path(__file__).parent
CLASSES = HERE / "reference" / "classes"
_HEAD = re.compile(r"^\[([A-Z]\w+(?:, [A-Z]\w+)*)\]$", re.MULTILINE)


def named(module: str) -> tuple[list[str], list[str]]:
    """The classes and the functions that a module is described by: those that no other package is the home of."""
    things = {name: getattr(import_module(module), name) for name in generated.public_names(module)}
    own = {name: thing for name, thing in things.items() if module != "fedstale" or _here(thing)}
    classes = [name for name, thing in own.items() if inspect.isclass(thing)]
    return sorted(classes, key=str.lower), sorted(name for name, thing in own.items() if inspect.isroutine(thing))


def _here(thing: Any) -> bool:
    return hasattr(thing, "__module__") and generated.home(thing) == "fedstale"


@cache
def examples(package: str) -> dict[str, str]:
    """The session that shows a class, by the class; what stands before the first heading begins all of them."""
    file = HERE / "reference" / "examples" / f"{package.rpartition('.')[2]}.txt"
    if not file.is_file():
        return {}
    start, *parts = _HEAD.split(file.read_text(encoding="utf-8"))
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return {name: f"{start.strip()}\n{text.strip()}" for names, text in pairs for name in names.split(", ")}


@cache
def formulas() -> dict[str, str]:
    """The global update of a rule in TeX, by the rule's name: the table of methods has them."""
    return dict(re.findall(r"^\| `([\w-]+)` \| \$([^$]+)\$", (HERE / "methods.md").read_text("utf-8"), re.MULTILINE))


def package(module: str) -> str:
    """Describe a package: a table of its names, the list of its classes' pages, its functions."""
    classes, functions = named(module)
    parts = [_directives(f".. automodule:: {module}", "   :no-members:")]
    for title, names in (("class", classes), ("function", functions)):
        if names:
            about = (generated.first_line(getattr(import_module(module), name)) for name in names)
            links = (f"{{py:obj}}`~{module}.{name}`" for name in names)
            parts.append(generated.table([title, "what it is"], zip(links, about, strict=True)))
    if classes:
        pages = [f"   {name} <../classes/{module}.{name}>" for name in classes]
        parts.append(_directives(".. toctree::", "   :hidden:", "", *pages))
    parts += [_directives(f".. currentmodule:: {module}", "", f".. autofunction:: {name}") for name in functions]
    return "\n\n".join(parts)


def _directives(*lines: str) -> str:
    return "\n".join(["```{eval-rst}", *lines, "```"])


def write() -> None:
    """Write the pages of the classes, and take away those of classes that are gone."""
    CLASSES.mkdir(exist_ok=True)
    pages = {
        f"{module}.{name}.rst": _page(module, name)
        for package in generated.PACKAGES
        for module in generated.modules(package)
        for name in named(module)[0]
    }
    for file in CLASSES.iterdir():
        if file.name not in pages:
            file.unlink()
    for file_name, text in pages.items():
        (CLASSES / file_name).write_text(text, encoding="utf-8")


def _page(module: str, name: str) -> str:
    home = generated.page_of(module)
    kind = "exception" if issubclass(getattr(import_module(module), name), Exception) else "class"
    return "\n".join(
        [
            *(name, "=" * len(name), "", f"In :doc:`{module} </reference/api/{home}>`.", ""),
            *(
                f".. currentmodule:: {module}",
                "",
                f".. auto{kind}:: {name}",
                "   :members:",
                "   :show-inheritance:",
                "",
            ),
        ]
    )
