"""Servers and devices by name, for configs and the command line."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

from ..checks import choose, unknown
from .devices import Devices, Equal, LogNormal, Measured, TwoClasses
from .servers import Asynchronous, Buffered, Server, Synchronous

T = TypeVar("T")

SERVERS: dict[str, type[Server]] = {kind.name: kind for kind in (Synchronous, Buffered, Asynchronous)}
DEVICES: dict[str, type[Devices]] = {kind.name: kind for kind in (Equal, TwoClasses, LogNormal, Measured)}


def make_server(name: str, **options: Any) -> Server:
    """Return a server by name: "synchronous", "buffered" or "asynchronous", with its options."""
    return _made("server", choose("server", name, SERVERS), name, options)


def make_devices(name: str, **options: Any) -> Devices:
    """Return how fast devices are, by name: "equal", "two-classes", "log-normal" or "measured" (with a table)."""
    return _made("devices", choose("devices", name, DEVICES), name, options)


def _made(what: str, kind: type[T], name: str, options: dict[str, Any]) -> T:
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    for option in options:
        if option not in known:
            raise unknown(f"option of {what} {name!r}:", option, known)
    return kind(**options)
