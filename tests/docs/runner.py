"""Runs the blocks of one page in order, in one folder and one namespace; `fedstale` runs in this process."""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import typer.main
from typer.testing import CliRunner

from fedstale.cli.app import app

from .blocks import ELSEWHERE, ROOT, Block, shape

PROGRAMS = ("ls", "cat", "openssl", "ssh-keygen", "printf")
"""What runs in a shell of its own; everything else that is neither fedstale nor python needs a mark."""
INSTALLERS = ("git", "cd", "python3", "pip", "make", "pre-commit", "source", ".", "apt-get")
FEDSTALE: Any = typer.main.get_command(app)
ASSIGNMENT = re.compile(r"([A-Z_]+)=(.*)")


@dataclass
class Runner:
    """The state of a page: its folder, its namespace, what was printed last."""

    folder: Path
    full: bool = False
    """Run long runs as they stand."""
    namespace: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})
    printed: str = ""

    def run(self, block: Block) -> None:
        """Do with a block what its language and its mark say."""
        if block.language.startswith("{"):
            return
        if block.mark == "file":
            target = self.folder / block.detail
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block.text, encoding="utf-8")
        if block.language == "toml":
            tomllib.loads(block.text)
        elif block.language == "text":
            self.compare(block)
        elif block.language == "python" and block.mark in ELSEWHERE:
            compile(block.text, block.where, "exec")
        elif block.language == "python":
            self.python(block)
        elif block.language == "console":
            self.console(block)

    def compare(self, block: Block) -> None:
        """An output that says it is one is what the last block printed, or a part of it."""
        if block.mark != "output" or (block.detail == "full shape" and not self.full):
            return
        if block.detail:
            assert shape(block.text) in shape(self.printed), f"{block.where}: shows\n{block.text}\nnot\n{self.printed}"
            return
        shown, printed = (
            "\n".join(line.rstrip() for line in text.strip("\n").splitlines()) for text in (block.text, self.printed)
        )
        assert shown in printed, f"{block.where}: shows\n{shown}\nnot\n{printed}"

    def python(self, block: Block) -> None:
        """Run the code; lines are counted as on the page."""
        source = "\n" * block.line + block.text
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(source, str(block.page), "exec"), self.namespace)
        self.printed = output.getvalue()

    def console(self, block: Block) -> None:
        """Run every line, or check what cannot be run here."""
        extra = shlex.split(block.detail) if block.mark in ("long run", "needs data") else []
        if self.full and block.mark == "long run":
            extra = []
        self.printed = ""
        for line in block.lines():
            words = shlex.split(line, comments=True)
            if block.mark == "needs install":
                check_install(block, words)
            elif block.mark in ELSEWHERE:
                check_command(block, words)
            else:
                self.printed += self.command(block, line, words, extra)

    def command(self, block: Block, line: str, words: list[str], extra: Sequence[str]) -> str:
        """Run one command and return what it printed."""
        with environment(words) as rest:
            if rest[0] == "fedstale":
                done = CliRunner().invoke(app, [*rest[1:], *extra])
                error = "" if done.exception is None else f"\n{type(done.exception).__name__}: {done.exception}"
                assert done.exit_code == 0, f"{block.where}: {line}\n{done.output}{error}"
                return done.stdout
            if rest[0] == "cd":
                os.chdir(rest[1])
                return ""
            if rest[0] == "python":
                output = io.StringIO()
                with contextlib.redirect_stdout(output):
                    runpy.run_path(rest[1], run_name="__main__")
                return output.getvalue()
            assert rest[0] in PROGRAMS, f"{block.where}: {rest[0]} is not run by this test: {', '.join(PROGRAMS)}"
            shell = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60)
            assert shell.returncode == 0, f"{block.where}: {line}\n{shell.stderr}"
            return shell.stdout


@contextlib.contextmanager
def environment(words: Sequence[str]) -> Iterator[list[str]]:
    """Set the variables before a command (A=1 program …) and take them back after it."""
    rest, before = list(words), dict(os.environ)
    while match := ASSIGNMENT.fullmatch(rest[0]):
        os.environ[match[1]] = match[2]
        rest.pop(0)
    try:
        yield rest
    finally:
        os.environ.clear()
        os.environ.update(before)


def prepare(folder: Path) -> None:
    """Give a page the files it may speak of: the examples, as in a clone."""
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))


def check_install(block: Block, words: Sequence[str]) -> None:
    """A command that sets a machine up: its program is one of few, its make target and its extras exist."""
    assert words[0] in INSTALLERS or words[0].endswith("/pip"), f"{block.where}: {words[0]} does not install anything"
    if words[0] == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
        for target in words[1:]:
            assert target in targets, f"{block.where}: make {target}: the Makefile has {', '.join(targets)}"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for word in words:
        for extras in re.findall(r"(?:fedstale|\.)\[([\w,-]+)\]", word):
            for extra in extras.split(","):
                assert extra in project["optional-dependencies"], f"{block.where}: there is no extra {extra}"
        if word.endswith(".txt"):
            assert (ROOT / word).is_file(), f"{block.where}: there is no {word}"


def check_command(block: Block, words: Sequence[str]) -> None:
    """A command that another test runs: its name and its options are those of the program."""
    with environment(words) as rest:
        if rest[0] == "fedstale":
            parse_fedstale(rest[1:])
        elif rest[0] == "flwr":
            from flwr.cli.app import app as flower

            check_options(block, *resolve(typer.main.get_command(flower), rest[1:]))
        elif rest[0] in ("cd", *PROGRAMS):
            pass
        else:
            scripts = {script.name for script in entry_points(group="console_scripts")}
            assert rest[0] in scripts, f"{block.where}: there is no program {rest[0]}"


def resolve(command: Any, words: Sequence[str]) -> tuple[Any, list[str]]:
    """Follow the words into the command tree."""
    rest = list(words)
    while hasattr(command, "commands"):
        word = rest[0] if rest else ""
        assert word in command.commands, f"no command {word!r}: {', '.join(command.commands)}"
        command = command.commands[rest.pop(0)]
    return command, rest


def check_options(block: Block, command: Any, words: Sequence[str]) -> None:
    """Every option is one of the command's."""
    known = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    for word in words:
        if re.match(r"--?[a-z]", word):
            assert word.partition("=")[0] in known | {"--help", "-h"}, f"{block.where}: {command.name} has no {word}"


def parse_fedstale(words: Sequence[str]) -> None:
    """Let the real parser read a command, without running it."""
    command, rest = resolve(FEDSTALE, words)
    command.make_context(command.name, list(rest))
