"""What somebody gets who installs the package: built as wheel and sdist, into empty environments, without our pins.

Only torch is pinned, because another one brings gigabytes. Every newest version of the other dependencies must do.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BASE = (["--version"], ["--help"], ["list", "rules"], ["runs", "--help"])
SIM = (["compare", "--quick", "-q"],)

pytestmark = pytest.mark.install


def call(words: Sequence[object], folder: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a program that sees neither this tree nor this environment."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run([*map(str, words)], cwd=folder, env=clean, capture_output=True, text=True, timeout=900)
    assert done.returncode == code, f"{words}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("dist")
    call([sys.executable, "-m", "hatchling", "build", "-d", folder], ROOT)
    (wheel,) = folder.glob("*.whl")
    (sdist,) = folder.glob("*.tar.gz")
    return {"wheel": wheel, "sdist": sdist}


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_a_plain_install_works(kind: str, built: dict[str, Path], tmp_path: Path) -> None:
    venv.create(tmp_path / "empty", with_pip=True)
    scripts = tmp_path / "empty" / ("Scripts" if sys.platform == "win32" else "bin")
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    torch = next(line for line in pins if line.startswith("torch=="))

    def install(*what: str) -> None:
        call([scripts / "python", "-m", "pip", "install", "--quiet", *what], tmp_path)

    install(str(built[kind]))
    for words in BASE:
        assert call([scripts / "fedstale", *words], tmp_path).stdout
    assert (
        "torch is not installed: pip install 'torch>=" in call([scripts / "fedstale", *SIM[0]], tmp_path, code=2).stderr
    )
    install(f"{built[kind]}[sim]", torch)
    for words in (*BASE, *SIM):
        assert call([scripts / "fedstale", *words], tmp_path).stdout
