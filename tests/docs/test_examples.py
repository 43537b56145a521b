"""Every class of the reference has an example, and every example prints what it shows."""

from __future__ import annotations

import doctest
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from .blocks import ROOT

pytest.importorskip("torch")
pytest.importorskip("flwr")
sys.path.insert(0, str(ROOT / "docs"))  # it is no package
generated: Any = import_module("generated")
class_pages: Any = import_module("class_pages")

MODULES = [module for package in generated.PACKAGES for module in generated.modules(package)]
SESSIONS = {
    (module, session): name for module in MODULES for name, session in reversed(class_pages.examples(module).items())
}


@pytest.mark.parametrize("module", MODULES)
def test_every_class_has_an_example_that_names_it(module: str) -> None:
    classes, _ = class_pages.named(module)
    assert set(class_pages.examples(module)) == set(classes)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("module", "session"), SESSIONS, ids=[f"{m}.{SESSIONS[m, s]}" for m, s in SESSIONS])
def test_an_example_prints_what_it_shows(
    module: str, session: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    test = doctest.DocTestParser().get_doctest(session, {}, module, None, 0)
    assert test.examples
    said: list[str] = []
    doctest.DocTestRunner(verbose=False).run(test, out=said.append)
    assert not said, "".join(said)


def test_an_example_that_shows_something_else_is_noticed() -> None:
    said: list[str] = []
    wrong = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, 0)
    doctest.DocTestRunner(verbose=False).run(wrong, out=said.append)
    assert said
