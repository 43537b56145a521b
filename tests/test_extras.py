"""A package that is not installed: one line that says what to install, and that works."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fedstale import extras

ROOT = Path(__file__).parents[1]
WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import fedstale as fs
fs.simulate("quadratic", num_clients=3, rounds=2, lr=0.02, progress=False)
for call in (lambda: fs.simulate("digits", rounds=2), lambda: fs.tasks.Task):
    try:
        call()
    except ModuleNotFoundError as error:
        print(error)
"""


def test_every_extra_is_one_that_is_declared() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert set(extras._EXTRA.values()) <= set(declared)


def test_the_line_names_packages_that_exist() -> None:
    line = extras.missing("torch")
    assert line.startswith("torch is not installed: pip install 'torch>=")
    assert "fedstale" not in line
    assert extras.missing("ray").endswith(": pip install 'ray>=2.40'")
    assert extras.missing("unheard_of") == "unheard_of is not installed: pip install unheard_of"


def test_without_metadata_the_package_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import metadata

    def nothing(_: str) -> list[str]:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "requires", nothing)
    assert extras.missing("torch") == "torch is not installed: pip install torch"


def test_what_is_of_no_extra_stays_as_it_is() -> None:
    error = ModuleNotFoundError("No module named 'surely_not_there'", name="surely_not_there")
    assert extras.explained(error) is error


def test_without_torch_one_line_and_what_needs_none_works() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == second
    assert first.startswith("torch is not installed: pip install ")
