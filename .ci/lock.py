"""Write locks/: what set-up installs, each archive by its SHA-256, for every platform that the index has one for.

    make lock [WHEELS=FOLDER]

Versions are those of constraints.txt; this adds the hashes and what other systems need beside it. all.txt and sim.txt
are the extras of those names with the build backend. torch has two builds of one version on Linux: the index's, which
needs CUDA's libraries (cuda.txt), and the one for CPUs, which pip may find in a folder of wheels; WHEELS names that
folder, so that its hash stands in the lock, too.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sysconfig
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = ("all", "sim")
EDITABLE = "editables"
"""What hatchling asks for when it installs a project that can be edited."""
CUDA = re.compile(r"(nvidia|cuda)-|triton==")
TORCH = re.compile(r"torch==(\S+)")
HEAD = "# Written by `make lock` from pyproject.toml and constraints.txt; do not edit.\n"


def compiled(extra: str) -> list[str]:
    """Every package of an extra: a pin, perhaps a marker, and its hashes."""
    backend = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    command = [str(Path(sysconfig.get_path("scripts")) / "uv"), "pip", "compile", "pyproject.toml", "-"]
    command += ["--extra", extra, "--constraint", "constraints.txt", "--generate-hashes", "--quiet"]
    command += ["--universal", "--python-version", "3.11.5", "--no-header", "--no-annotate"]
    wanted = "\n".join([*backend, EDITABLE])
    done = subprocess.run(command, cwd=ROOT, input=wanted, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603
    return re.split(r"\n(?=\S)", done.stdout.rstrip("\n"))


def with_wheels(package: str, wheels: Path | None) -> str:
    """Add the hashes of further builds of torch's version."""
    pin = TORCH.match(package)
    if pin is None or wheels is None:
        return package
    found = sorted(hashlib.sha256(path.read_bytes()).hexdigest() for path in wheels.glob(f"torch-{pin[1]}[+-]*.whl"))
    more = [f"    --hash=sha256:{one}" for one in found if one not in package]
    return " \\\n".join([package, *more])


def main() -> None:
    """Write the three files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheels", type=Path, help="folder with other builds of torch")
    wheels = parser.parse_args().wheels
    folder = ROOT / "locks"
    folder.mkdir(exist_ok=True)
    for extra in EXTRAS:
        packages = [with_wheels(package, wheels) for package in compiled(extra)]
        parts = {extra: [one for one in packages if not CUDA.match(one)]}
        if extra == "all":
            parts["cuda"] = [one for one in packages if CUDA.match(one)]
        for name, lines in parts.items():
            (folder / f"{name}.txt").write_text(HEAD + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
