"""The public surface is a decision: each package lists it, `dir` shows it, and what only one file uses is private.

    python tests/test_public_surface.py [TREE]      # how many public definitions there are, and which nobody else uses

(That the documented names are the exported ones is looked at in tests/docs/test_site.py.)
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = sorted(
    ".".join(file.parent.relative_to(ROOT / "src").parts)
    for file in (ROOT / "src/fedstale").rglob("__init__.py")
    if not {"template", "paper"} & set(file.parts)  # the modules of the paper speak for themselves
)


def defined(tree: ast.Module) -> Iterator[str]:
    """The public names that a module defines: functions, classes, constants."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
        else:
            continue
        yield from (name for name in names if not name.startswith("_"))


def exported(tree: ast.Module) -> set[str]:
    """What a module lists in `__all__`."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return set(ast.literal_eval(node.value))
    return set()


def mentioned(tree: ast.Module) -> set[str]:
    """What a module imports, asks of another, or names in a short text (a lazy import, a registry)."""
    words: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            words |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Attribute):
            words.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" not in node.value:
            words |= set(re.findall(r"\w+", node.value))
    return words


def surface(root: Path = ROOT) -> tuple[int, list[str]]:
    """How many public definitions the package has, and those that neither another file uses nor any package exports."""
    files = [file for file in sorted((root / "src/fedstale").rglob("*.py")) if "template" not in file.parts]
    texts = {file: file.read_text(encoding="utf-8") for file in files}
    trees = {file: ast.parse(text) for file, text in texts.items()}
    users = Counter(word for tree in trees.values() for word in mentioned(tree))
    own = {file: mentioned(tree) for file, tree in trees.items()}
    outside = "".join(file.read_text(encoding="utf-8") for file in (root / "docs").glob("*.py"))  # registries it lists
    # The states of rules are named in checkpoints: their names are part of the format.
    states = {name for text in texts.values() for name in re.findall(r"^class (\w+State)\(", text, re.MULTILINE)}
    public = states | {word for tree in trees.values() for word in exported(tree)} | set(re.findall(r"\w+", outside))
    names = [(file, name) for file, tree in trees.items() for name in defined(tree)]
    alone = [(file, name) for file, name in names if users[name] == (name in own[file]) and name not in public]
    return len(names), [f"{file.relative_to(root / 'src/fedstale').as_posix()}: {name}" for file, name in alone]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_lists_what_it_offers(package: str) -> None:
    module = import_module(package)
    listed = module.__all__
    assert len(set(listed)) == len(listed)
    assert all(hasattr(module, name) for name in listed)
    assert set(listed) <= set(dir(module))


def test_what_only_its_own_file_uses_has_an_underscore() -> None:
    assert surface()[1] == []


def test_no_two_classes_share_a_name() -> None:
    """But a Flower strategy and its rule, which are one method."""
    files = [file for file in (ROOT / "src/fedstale").rglob("*.py") if "template" not in file.parts]
    places: dict[str, list[str]] = {}
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(file.relative_to(ROOT / "src/fedstale").as_posix())
    twice = {name: set(found) - {"flower/strategies.py"} for name, found in places.items() if len(found) > 1}
    assert {
        name: found for name, found in twice.items() if len(found) != 1 or not found.pop().startswith("rules/")
    } == {}


if __name__ == "__main__":
    count, alone = surface(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
    print(f"{count} public definitions, {len(alone)} of them used only in their own file")
    print(*(f"  {line}" for line in alone), sep="\n")
