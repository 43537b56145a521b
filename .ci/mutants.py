"""Change the code in one place at a time, and print the changes that no test notices.

    make mutants [FILE=src/fedstale/rules/mifa.py]

mutmut makes the changes, in a copy of the tree that is removed in the end, and runs for each of them those tests of its
folder that call the changed function. It has a virtual environment of its own, which sees all that is installed beside
it. What is printed is to be read: some changes make no difference, or only to the wording of a message.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = Path("src/fedstale")
TESTS = {
    "rules": [
        *(
            f"tests/rules/test_{name}.py"
            for name in ("algebra", "every_rule", "guard", "held", "late", "methods", "references", "rivals", "robust")
        ),
        *(f"tests/rules/test_{name}.py" for name in ("state", "tempered", "unbiased")),
        "tests/test_beta.py",
    ],
    "memory": ["tests/memory", "tests/rules/test_every_rule.py", "tests/rules/test_algebra.py", "tests/test_copies.py"],
    "beta.py": ["tests/test_beta.py", "tests/rules/test_every_rule.py"],
    "theta.py": ["tests/test_theta.py", "tests/rules/test_tempered.py", "tests/rules/test_references.py"],
    "participation": ["tests/participation"],
}
"""The tests that must notice, by what is changed."""
BESIDE = ("docs", "benchmarks")
"""What tests read or import beside the source."""
INSTALL = ("mutmut>=3.8,<4", "pytest>=8.4,<9")
"""mutmut 3.8 reads an attribute of a test that pytest 9 no longer has."""


def environment(folder: Path) -> Path:
    """Python with mutmut, in front of what this Python has."""
    python = folder / "bin" / "python"
    if not (folder / "bin" / "mutmut").exists():
        venv.create(folder, with_pip=True, clear=True)
        (own,) = folder.glob("lib/python3*/site-packages")
        (own / "beside.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *INSTALL]
        subprocess.run(pip, check=True)
    return python.absolute()


def chosen(paths: list[Path]) -> dict[str, list[str]]:
    """The files to change, by their entry in `TESTS`; everything in it if nothing is named."""
    groups: dict[str, list[str]] = {}
    for path in paths or [ROOT / SOURCE / name for name in TESTS]:
        inside = path.resolve().relative_to(ROOT / SOURCE)
        if inside.parts[0] not in TESTS:
            raise SystemExit(f"no tests are named for {path}: they are for {', '.join(TESTS)} in {SOURCE}")
        pattern = f"{SOURCE / inside}/*" if path.is_dir() else str(SOURCE / inside)
        groups.setdefault(inside.parts[0], []).append(pattern)
    return groups


def survivors(python: Path, tree: Path, files: list[str], tests: list[str], jobs: int, minutes: float | None) -> None:
    """Run one group of files in a copy of the tree, and print what was not noticed."""
    settings = {
        "source_paths": ["src"],
        "only_mutate": files,
        "also_copy": BESIDE,
        "pytest_add_cli_args": ["-p", "no:xdist", "-p", "no:cacheprovider"],
        "pytest_add_cli_args_test_selection": tests,
        "process_isolation": "forkserver",
    }
    for name in ("src", "tests", "pyproject.toml", *BESIDE):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, tree / name)
    with open(tree / "pyproject.toml", "a", encoding="utf-8") as file:
        file.write("\n[tool.mutmut]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items()))
    mutmut = [str(python), "-m", "mutmut"]
    changed = tree / "mutants" / "src"
    changed.mkdir(parents=True)  # Python remembers of a folder in its path that it was missing
    around = {**os.environ, "PYTHONPATH": str(changed)}
    log = tree / "log"
    with open(log, "w", encoding="utf-8") as file:  # a spinner that turns ten times a second
        command = [*mutmut, "run", "--max-children", str(jobs)]
        mutmut_run = subprocess.Popen(command, cwd=tree, env=around, stdout=file, stderr=file, start_new_session=True)
        try:
            code = mutmut_run.wait(None if minutes is None else 60 * minutes)
        except subprocess.TimeoutExpired:
            os.killpg(mutmut_run.pid, signal.SIGKILL)  # it has written down what it found so far
            mutmut_run.wait()
            code = 0
    if code:
        print(*log.read_text(encoding="utf-8").replace("\r", "\n").splitlines()[-40:], sep="\n")
        raise SystemExit(
            f"mutmut ended with code {code}; do the tests pass as they are? {python} -m pytest {' '.join(tests)}"
        )
    told = subprocess.run(
        [*mutmut, "results", "--all", "true"], cwd=tree, stdout=subprocess.PIPE, text=True, check=True
    )
    states = [line.strip().rpartition(": ")[::2] for line in told.stdout.splitlines() if line.strip()]
    left = [(name, state) for name, state in states if state not in ("killed", "not checked")]
    tried = sum(state != "not checked" for _, state in states)
    for name, state in left:
        show = subprocess.run([*mutmut, "show", name], cwd=tree, stdout=subprocess.PIPE, text=True, check=True)
        print(f"\n{state}: {name}", *re.findall(r"^(?:@@.*|[-+](?![-+]).*)$", show.stdout, re.MULTILINE), sep="\n")
    rest = f"; {len(states) - tried} more were not tried in {minutes:g} minutes" if tried < len(states) else ""
    print(
        f"\n{', '.join(files)}: {len(left)} of {tried} changes that {', '.join(tests)} did not notice{rest}", flush=True
    )


def main() -> None:
    """Run the groups one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, metavar="FILE", help="files or folders; default: all of them")
    parser.add_argument("--env", type=Path, default=Path(sys.prefix) / "mutants", help="where mutmut is installed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="changes tried at the same time")
    parser.add_argument("--minutes", type=float, help="stop after so many for each group; what is left is counted")
    options = parser.parse_args()
    groups = chosen(options.paths)
    python = environment(options.env)
    for name, files in groups.items():
        with tempfile.TemporaryDirectory(prefix="fedstale-mutants-") as tree:
            survivors(python, Path(tree), files, TESTS[name], options.jobs, options.minutes)


if __name__ == "__main__":
    main()
