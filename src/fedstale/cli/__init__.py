"""The command line: thin. Parse, call, print."""

from .app import main

__all__ = ["main"]
