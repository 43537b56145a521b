"""What no file of the project may do: run what data says, or read what can run something.

Most of it is ruff's, in `pyproject.toml`: its S rules, and `banned-api` for what may not be imported or called at all.
`found` asks ruff for these in every folder, whatever `noqa` says. Written here is what ruff has no rule for:

- files whose name does not end in .py: the templates of the Flower app, which hold `@package@` where a name will stand;
- calls that are known by their argument or by the name of a method: `allow_pickle=True`, `archive.extractall(…)`,
  `enable_load_extension(…)`, and the built-in `compile` and `__import__`;
- `assert` in what is shipped, which `noqa: S101` allows where it narrows a type, and only there.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "examples", "benchmarks", "docs")
JUDGED = ("S101", "S104", "S310", "S603", "S608")
"""Rules of ruff that ask for a look at each place: a `noqa` there says that somebody looked."""
CALLS = {
    "extractall": "members may lead outside: read them by name, or give filter='data'",
    "extract": "members may lead outside: read them by name",
    "enable_load_extension": "loads a library",
    "load_extension": "loads a library",
}
BUILT_IN = {"compile": "prepares a text to be run", "__import__": "imports what a text says"}


def files() -> list[Path]:
    """Every Python file that is shipped or run by hand; the templates of the Flower app among them."""
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if "_build" not in path.parts]
    return sorted([*found, *(ROOT / "src").rglob("*.py.txt")])


def found() -> Iterator[str]:
    """Yield what is wrong with the files, with the place."""
    yield from ruff(*FOLDERS)
    for path in files():
        text = path.read_text(encoding="utf-8").replace("@package@", "package")
        place = path.relative_to(ROOT)
        if path.suffix == ".txt":
            yield from (f"{place}: {what}" for what in ruff("-", text=text))
        yield from (f"{place}:{line}: {what}" for line, what in wrong(text, shipped=place.parts[0] == "src"))


def ruff(*paths: str, text: str = "") -> Iterator[str]:
    """Yield what ruff finds in files, or in a text (`-`), whatever `noqa` says."""
    select = ["--select", "S,TID251", "--ignore", ",".join(JUDGED), "--ignore-noqa", "--output-format", "json"]
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", *select, *paths]
    done = subprocess.run(command, input=text, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode in (0, 1), done.stderr
    for one in json.loads(done.stdout):
        yield f"{one['filename']}:{one['location']['row']}: {one['code']} {one['message']}"


def wrong(text: str, *, shipped: bool = True) -> Iterator[tuple[int, str]]:
    """Yield (line, what is wrong) where ruff has no rule; `shipped` code may not validate with `assert` either."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            given = {word.arg: getattr(word.value, "value", ...) for word in node.keywords}
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in CALLS and not (name == "extractall" and given.get("filter") == "data"):
                yield node.lineno, f"{name}: {CALLS[name]}"
            if isinstance(node.func, ast.Name) and name in BUILT_IN:
                yield node.lineno, f"{name}: {BUILT_IN[name]}"
            if given.get("allow_pickle", False) is not False:
                yield node.lineno, f"{name}(allow_pickle=…): unpickles"
        elif shipped and isinstance(node, ast.Assert) and not _narrows(node.test):
            yield node.lineno, "assert: it vanishes with python -O; raise an error, or narrow a type"


def _narrows(test: ast.expr) -> bool:
    """Whether an assertion only tells the type checker what the code makes true: not None, or of a class."""
    if isinstance(test, ast.Compare):
        return isinstance(test.ops[0], ast.IsNot) and getattr(test.comparators[-1], "value", ...) is None
    return isinstance(test, ast.Call) and getattr(test.func, "id", "") == "isinstance"
