"""The strategies under every release of Flower in reach: each in an environment of its own, without our pins."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VERSIONS = ("1.38.0", "1.39.0", "1.40.0", "1.41.0", "1.42.0")
CORE = (
    "test_equivalence",
    "test_rounds",
    "test_replies",
    "test_identity",
    "test_resume",
    "test_held_memory",
    "test_secure_aggregation",
    "test_drop_in",
    "test_late",
    "test_restart",
    "test_forget",
    "test_bounds",
)
pytestmark = [pytest.mark.slow, pytest.mark.network]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_core_tests_pass(version: str, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    base = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    wanted = [f"flwr=={version}", "pytest", "hypothesis", *base]
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    clean |= {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "FLWR_TELEMETRY_ENABLED": "0"}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(python), "-m", *words]
        return subprocess.run(command, cwd=ROOT, env=clean, capture_output=True, text=True, timeout=3600)

    def call(*words: str) -> str:
        done = run(*words)
        assert done.returncode == 0, f"{words}\n{done.stdout[-4000:]}\n{done.stderr[-2000:]}"
        return done.stdout

    installed = run("pip", "install", "--quiet", *wanted)
    borrowed = installed.returncode != 0 and "No matching distribution" in installed.stderr
    if borrowed:  # its own dependencies are newer than what there is to install: those of the release before
        before = VERSIONS[VERSIONS.index(version) - 1]
        call("pip", "install", "--quiet", f"flwr=={before}", *wanted[1:])
        call("pip", "install", "--quiet", "--no-deps", wanted[0])
    else:
        assert installed.returncode == 0, installed.stderr[-2000:]
    call("pytest", "-p", "no:cacheprovider", *(f"tests/flower/{name}.py" for name in CORE))
    assert version in call("pip", "show", "flwr")
    if borrowed:
        pytest.skip(f"passed, but with the dependencies of {before}: {installed.stderr.strip().splitlines()[-1]}")
