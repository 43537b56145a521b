"""Packages that not everybody has: the line that says which one is missing and what to install.

The line names the packages themselves, as the installed version of fedstale declares them, so that it works wherever
fedstale came from: a checkout, a wheel, an index.
"""

from __future__ import annotations

import re
import shlex

_EXTRA = {
    **dict.fromkeys(("torch", "sklearn", "matplotlib", "platformdirs", "tomli_w", "PIL"), "sim"),
    **dict.fromkeys(("dash", "plotly", "flask", "werkzeug"), "board"),
    **dict.fromkeys(("tensorboard", "mlflow"), "track"),
    "flwr": "flower",
    "ray": "ray",
    "pyarrow": "parquet",
    "pandas": "pandas",
}
"""The extra of each package that is imported only where it is needed."""


def missing(package: str) -> str:
    """Say that a package is not installed, and how to install all of its extra."""
    extra = _EXTRA.get(package)
    found = sorted(_requirements(extra) if extra else (), key=lambda line: not line.startswith(package))
    wanted = " ".join(map(shlex.quote, found)) or package
    return f"{package} is not installed: pip install {wanted}"


def explained(error: ModuleNotFoundError) -> ModuleNotFoundError:
    """Return the error with the line above where the package is one of an extra; otherwise as it is."""
    package = (error.name or "").partition(".")[0]
    return ModuleNotFoundError(missing(package), name=error.name) if package in _EXTRA else error


def _requirements(extra: str) -> list[str]:
    from importlib.metadata import PackageNotFoundError, requires

    try:
        lines = requires("fedstale") or []
    except PackageNotFoundError:  # run from its folder, without having been installed
        return []
    wanted = re.compile(rf"extra\s*==\s*['\"]{extra}['\"]")
    return [line.partition(";")[0].strip() for line in lines if wanted.search(line)]
