"""When two runs are the same run: equal in every setting that is not at its default.

A setting that a later version adds (with the default that changes nothing) must not make a store's runs strangers: they
would all be run again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..simulation.settings import settings
from ..store import RunInfo, Store, digest

_DEFAULTS = settings().record()


def identity(config: Mapping[str, Any]) -> str:
    """Return what identifies a run: a hash of the settings that differ from the defaults."""
    absent = object()
    return digest({name: value for name, value in config.items() if value != _DEFAULTS.get(name, absent)})


def finished(store: Store) -> dict[str, RunInfo]:
    """Return the runs of a store that came to their end (or diverged) by identity, the newest of equals."""
    return {identity(info.config): info for info in reversed(store.runs()) if info.ended}
