"""The command line, called in this process."""

from __future__ import annotations

from typing import Any

from typer.testing import CliRunner

from fedstale.cli.app import app


def ok(*words: object, **more: Any) -> str:
    """Call a command that works, and return what it prints."""
    done = CliRunner().invoke(app, list(map(str, words)), **more)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout
