"""The command line: thin. Parse, call, print."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run a command; also while it is still being loaded, Ctrl-C ends it without a traceback."""
    try:
        from .app import main as run
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    run()
