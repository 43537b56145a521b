"""The package on other versions of Python, where they are to be had: installed from a wheel, the mathematics tested.

An interpreter is one on the PATH, one of pyenv, or one that uv has or can fetch. torch, Flower and Ray have a build for
one version of Python in most set-ups, so that what runs here is the base install: rules, memories, participation, β,
theory.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from .test_install import BASE, ROOT, call

pytestmark = [pytest.mark.slow, pytest.mark.network]

VERSIONS = ("3.12", "3.13")
ROOMS = ("rules", "memory", "participation", "theory")


def interpreter(version: str) -> str | None:
    """Where a Python of this version is; None where none can be had."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    known = [shutil.which(f"python{version}"), *(str(path) for path in versions.glob(f"{version}.*/bin/python"))]
    if (works := next(filter(_works, known), None)) is not None:
        return works
    uv = Path(sysconfig.get_path("scripts")) / "uv"
    if not uv.exists():
        return None
    subprocess.run([uv, "python", "install", "--quiet", version], capture_output=True, timeout=300)
    done = subprocess.run([uv, "python", "find", version], capture_output=True, text=True, timeout=60)
    return done.stdout.strip() or None


def _works(path: str | None) -> bool:
    """Whether it runs: pyenv puts programs on the PATH that do nothing but say that they were not chosen."""
    return path is not None and subprocess.run([path, "--version"], capture_output=True, timeout=60).returncode == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_the_base_install_works(version: str, tmp_path: Path) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} is to be had here")
    call([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path], ROOT)
    (wheel,) = tmp_path.glob("*.whl")
    call([python, "-m", "venv", tmp_path / "empty"], tmp_path)
    scripts = tmp_path / "empty" / "bin"
    call([scripts / "python", "-m", "pip", "install", "--quiet", wheel, "pytest", "hypothesis", "scipy"], tmp_path)
    for words in BASE:
        assert call([scripts / "fedstale", *words], tmp_path).stdout
    folders = [str(ROOT / "tests" / room) for room in ROOMS]
    call(
        [
            scripts / "python",
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "--ignore-glob=*test_guard.py",
            *folders,
            ROOT / "tests" / "test_beta.py",
        ],
        ROOT,
    )
