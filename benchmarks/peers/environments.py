"""One virtual environment per contender: .venv-peers/NAME, made when it is missing or asked for something else.

    python -m benchmarks.peers.environments [--only NAME …]

torch comes first and is pinned everywhere, so that nobody brings another one. What cannot be installed leaves its last
error line in .venv-peers/NAME/error.txt; the race reports it instead of a time.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".venv-peers"
TORCH = ["torch==2.13.0", "numpy"]
WANTED = {
    "plain": [],
    "fedstale": ["-e", ".[sim]"],
    "flower": ["flwr[simulation]==1.41.0"],
    "pfl": ["pfl[pytorch]==0.6.0"],
    "fluke": ["fluke-fl==0.8.1"],
}


def python(name: str) -> Path:
    """The interpreter of a contender's environment."""
    return HOME / name / "bin" / "python"


def error(name: str) -> str | None:
    """Why a contender could not be installed; None if it could."""
    file = HOME / name / "error.txt"
    if file.exists():
        return file.read_text().strip()
    return None if python(name).exists() else "not installed"


def make(name: str) -> str | None:
    """Make an environment and return why it failed, if it did."""
    folder, wanted = HOME / name, " ".join([*TORCH, *WANTED[name]])
    done, failed, constraints = folder / "installed.txt", folder / "error.txt", folder / "constraints.txt"
    if done.exists() and done.read_text() == wanted:
        return None
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    failed.unlink(missing_ok=True)
    constraints.write_text(TORCH[0] + "\n")
    limits = ["-c", str(constraints)] + (["-c", "constraints.txt"] if name == "fedstale" else [])
    for packages in (TORCH, WANTED[name]):
        if not packages:
            continue
        command = [str(python(name)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        tried = subprocess.run([*command, *limits, *packages], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        if tried.returncode:
            lines = [line for line in tried.stderr.splitlines() if line.startswith("ERROR")] or ["pip failed"]
            failed.write_text(lines[-1] + "\n")
            return lines[-1]
    done.write_text(wanted)
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=WANTED, default=list(WANTED))
    for name in parser.parse_args().only:
        print(f"{name}: {make(name) or 'ready'}", flush=True)


if __name__ == "__main__":
    main()
