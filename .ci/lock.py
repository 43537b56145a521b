"""Write locks/: what set-up installs, each archive by its SHA-256, for every platform that the index has one for.

    make lock [WHEELS=FOLDER]

Versions are those of constraints.txt; this adds the hashes and what other systems need beside it. all.txt and sim.txt
are the extras of those names with the build backend, without torch, which has two builds of one version on Linux: the
one for CPUs (torch-cpu.txt), which pip may find in a folder of wheels, and the index's with CUDA's libraries
(torch.txt). Set-up tries them in this order; in one file pip would always take the index's, because only of that one
it knows the hash beforehand. WHEELS names the folder, without it torch-cpu.txt stays as it is.
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
APART = re.compile(r"torch==|(nvidia|cuda)-|triton==")
"""torch, and what its build with CUDA needs."""
TORCH = re.compile(r"torch==(\S+)")
HEAD = "# Written by `make lock` from pyproject.toml and constraints.txt; do not edit.\n"


def compiled(extra: str) -> list[str]:
    """Every package of an extra: a pin, perhaps a marker, and its hashes."""
    backend = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    command = [str(Path(sysconfig.get_path("scripts")) / "uv"), "pip", "compile", "pyproject.toml", "-"]
    command += ["--extra", extra, "--constraint", "constraints.txt", "--generate-hashes", "--quiet"]
    command += ["--universal", "--python-version", "3.11.5", "--no-header", "--no-annotate"]
    wanted = "\n".join([*backend, EDITABLE])
    done = subprocess.run(command, cwd=ROOT, input=wanted, stdout=subprocess.PIPE, text=True, check=True)
    return re.split(r"\n(?=\S)", done.stdout.rstrip("\n"))


def cpu_build(version: str, wheels: Path) -> str:
    """The pin of torch's build for CPUs, with the hashes of what lies in the folder."""
    found = sorted(hashlib.sha256(path.read_bytes()).hexdigest() for path in wheels.glob(f"torch-{version}+cpu-*.whl"))
    return " \\\n".join([f"torch=={version}+cpu", *(f"    --hash=sha256:{one}" for one in found)])


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheels", type=Path, help="folder with torch's build for CPUs")
    wheels = parser.parse_args().wheels
    parts: dict[str, list[str]] = {}
    for extra in EXTRAS:
        packages = compiled(extra)
        parts[extra] = [one for one in packages if not APART.match(one)]
        parts["torch"] = [one for one in packages if APART.match(one)]
    if wheels is not None:
        version = next(pin[1] for pin in map(TORCH.match, parts["torch"]) if pin)
        parts["torch-cpu"] = [cpu_build(version, wheels)]
    folder = ROOT / "locks"
    folder.mkdir(exist_ok=True)
    for name, lines in parts.items():
        (folder / f"{name}.txt").write_text(HEAD + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
