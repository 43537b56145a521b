"""Bars: in a notebook as HTML that replaces itself, in a terminal by Rich, nowhere else by default; and long lines."""

from __future__ import annotations

import io
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import fedstale as fs
from fedstale import terminal


class Kernel:
    """What a notebook's kernel offers of IPython, and what a cell showed."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def display(self, html: str, *, display_id: bool) -> Kernel:
        assert display_id
        self.update(html)
        return self

    def update(self, html: str) -> None:
        self.shown.append(html)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    made = Kernel()
    ipython: Any = ModuleType("IPython")
    shown: Any = ModuleType("IPython.display")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=True)
    shown.HTML, shown.display = str, made.display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", shown)
    monkeypatch.setattr(terminal, "_REFRESH", 0.0)
    return made


def test_a_run_in_a_notebook_shows_a_bar(kernel: Kernel) -> None:
    fs.simulate("quadratic", "fedstale", num_clients=3, rounds=4, p_min=0.5, lr=0.02)
    assert 'max="4"' in kernel.shown[0]
    assert 'value="4"' in kernel.shown[-1]
    assert "FedStale β=auto" in kernel.shown[-1]
    assert "excess" in kernel.shown[-1]
    assert any(" left" in html for html in kernel.shown)
    before = len(kernel.shown)
    fs.simulate("quadratic", num_clients=3, rounds=4, lr=0.02, progress=False)
    assert len(kernel.shown) == before


def test_what_a_label_says_is_text(kernel: Kernel) -> None:
    bar = terminal.make_bar("<b>", 3)
    bar.update(1, "<i>")
    bar.stop()
    assert "&lt;b&gt;" in kernel.shown[-1]
    assert "<i>" not in "".join(kernel.shown)


def test_a_bar_that_vanishes(kernel: Kernel) -> None:
    terminal.make_bar("compare", 3, transient=True).stop()
    assert kernel.shown[-1] == ""


def test_by_default_only_where_somebody_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(tty: bool) -> Any:
        return SimpleNamespace(isatty=lambda: tty)

    monkeypatch.setattr(sys, "stderr", of(False))
    assert not terminal.shows_progress(None)
    assert terminal.shows_progress(True)
    monkeypatch.setattr(sys, "stderr", of(True))
    assert terminal.shows_progress(None)
    assert not terminal.shows_progress(False)


def test_duration() -> None:
    assert terminal.duration(0.4) == "0 s"
    assert terminal.duration(89.4) == "89 s"
    assert terminal.duration(125.7) == "2 min"
    assert terminal.duration(5399) == "90 min"
    assert terminal.duration(12_600) == "3.5 h"


@pytest.mark.parametrize("err", [False, True])
def test_long_lines_are_broken_between_words(err: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    text = "short\n" + "word " * 12 + "/a/path/that-is-longer-than-the-screen-is-wide"
    assert terminal.fitted(text, err=err) == text  # behind a pipe
    monkeypatch.setattr(sys, "stderr" if err else "stdout", Screen())
    monkeypatch.setenv("COLUMNS", "24")
    lines = terminal.fitted(text, err=err).split("\n")
    assert lines[0] == "short"
    assert lines[-1] == "/a/path/that-is-longer-than-the-screen-is-wide"
    assert all(len(line) <= 24 for line in lines[:-1])
    assert " ".join(lines[1:]).split() == text.split()[1:]
