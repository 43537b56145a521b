"""Names of a package that are imported when they are first asked for, so that `import fedstale` needs NumPy alone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make a package's `__getattr__` and `__dir__` (PEP 562).

    Parameters
    ----------
    package
        The package's `__name__`.
    homes
        The module of the package in which each name lives; a module that is its own home is itself the name.
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            module = import_module(f"{package}.{homes[name]}")
        except ModuleNotFoundError as error:
            from .extras import explained

            raise explained(error) from error
        return module if homes[name] == name else getattr(module, name)

    def names() -> list[str]:
        return list(sys.modules[package].__all__)

    return get, names
