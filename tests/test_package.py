"""What `import fedstale` costs and brings, and what the package says it needs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import fedstale as fs


def loaded(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; import sys; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    return {name.partition(".")[0] for name in done.stdout.split()}


def test_import_brings_numpy_and_nothing_else() -> None:
    """Heavy packages are imported when they are asked for; this is what keeps the import under 0.3 s."""
    extra = loaded("import fedstale") - loaded("import numpy") - set(sys.stdlib_module_names)
    assert {name for name in extra if not name.startswith("_")} == {"fedstale"}


def test_public_names_exist() -> None:
    assert all(hasattr(fs, name) for name in fs.__all__)
    assert len(set(fs.__all__)) == len(fs.__all__)


ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
OURS = {"fedstale", "tests", "benchmarks", "generated", "flower_quickstart", "fedstale_baseline"}
"""Packages of this tree, of its documentation and of its examples."""


def names(requirements: list[str]) -> set[str]:
    """The distributions that requirements name, as `importlib.metadata` spells them when compared in lower case."""
    return {re.split(r"[\s<>=!~;\[]", line, maxsplit=1)[0].lower().replace("_", "-") for line in requirements}


def imported(folder: Path) -> dict[str, Path]:
    """Every package that is imported below a folder, with one file that does it."""
    found: dict[str, Path] = {}
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                modules = [node.module or ""]
            found |= {module.partition(".")[0]: file for module in modules}
    return {name: file for name, file in found.items() if name not in sys.stdlib_module_names}


brought = cache(packages_distributions)


@pytest.mark.parametrize(
    ("folder", "extras"),
    [
        ("src", ["sim", "flower", "ray", "board", "track", "parquet", "fast", "pandas"]),
        ("tests", list(EXTRAS)),
        ("benchmarks", list(EXTRAS)),
        ("docs", list(EXTRAS)),
        ("examples", list(EXTRAS)),
    ],
)
def test_every_import_is_of_a_declared_dependency(folder: str, extras: list[str]) -> None:
    """What another package happens to bring today may be gone tomorrow: typer no longer brings click."""
    declared = names(PROJECT["dependencies"]) | names([line for extra in extras for line in EXTRAS[extra]])
    brings = brought()
    for package, file in imported(ROOT / folder).items():
        own = package in OURS or any((file.parent / name).exists() for name in (f"{package}.py", package))
        peers = "peers" in file.parts  # each peer is measured in an environment of its own
        distributions = {name.lower().replace("_", "-") for name in brings.get(package, [package])}
        assert own or peers or distributions & declared, f"{file.relative_to(ROOT)} imports {package}, undeclared"


def inner_imports(package: str) -> set[str]:
    """The packages and modules of fedstale that the files of one of them import, lazily or not."""
    found = set()
    start = ROOT / "src" / "fedstale"
    for file in (start / package).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level:
                above = file.relative_to(start).parts[: -node.level]
                names = [*above, *(node.module.split(".") if node.module else [])]
                found |= {names[0]} if names else {alias.name for alias in node.names}
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
                found |= {module.split(".")[1] for module in modules if module.startswith("fedstale.")}
    return found - {package}


@pytest.mark.parametrize("package", ["participation", "rules", "memory", "theory", "clock"])
def test_mathematics_knows_no_machinery(package: str) -> None:
    """Nor does it import a package further down in docs/architecture.md; `durable` is for files of rows and logs."""
    mathematics = {"participation", "rules", "memory", "theory", "clock", "beta", "theta"}
    shared = {"checks", "difference", "federation", "randomness", "state", "rule_state", "durable"}
    assert inner_imports(package) <= mathematics | shared


@pytest.mark.parametrize("view", ["board", "report"])
def test_views_show_what_analysis_says_and_not_the_paper(view: str) -> None:
    found = inner_imports(view)
    assert "analysis" in found
    assert not found & {"paper", "cli", "figures", "board", "report"}


def test_analysis_is_plain_data() -> None:
    """No picture library and nothing of what is built upon it; `simulation` for the names of types alone."""
    assert not inner_imports("analysis") & {"paper", "board", "report", "figures", "cli", "sweeps", "store", "flower"}
    brought = loaded("import fedstale.analysis")
    assert not brought & {"matplotlib", "plotly", "dash", "torch", "rich", "pydantic"}
