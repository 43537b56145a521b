"""What the README shows works as shown."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
import typer.main

from fedstale.cli.app import app

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
CONSOLE = [
    line for block in re.findall(r"```console\n(.*?)```", README, flags=re.DOTALL) for line in block.splitlines()
]


@pytest.mark.parametrize("block", PYTHON, ids=range(len(PYTHON)))
def test_python_blocks_run(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("flwr")
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), {})


@pytest.mark.parametrize("line", CONSOLE)
def test_commands_are_understood(line: str) -> None:
    """Every command is parsed by the real parser: the names of commands and options are right."""
    words = shlex.split(line, comments=True)
    assert words[0] == "fedstale"
    command: click.Command = typer.main.get_command(app)
    context = click.Context(command, info_name="fedstale")
    rest = words[1:]
    while isinstance(command, click.Group):
        name, command, rest = command.resolve_command(context, rest)  # type: ignore[assignment]
        context = click.Context(command, info_name=name, parent=context)
    command.parse_args(context, list(rest))
