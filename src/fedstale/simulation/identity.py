"""When two runs are the same run: equal in every setting that is not at its default, in whatever words.

A setting that a later version adds (with the default that changes nothing) must not make a store's runs strangers: they
would all be run again. A run of which a part could not be written down is like no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..configs import canonical, whole
from ..store import RunInfo, Store, digest
from .settings import WHERE, Settings, make_settings

_DEFAULTS = canonical(make_settings().record())


def identity(config: Mapping[str, Any]) -> str:
    """Return what identifies a run: a hash of the settings that differ from the defaults."""
    absent = object()
    counted = {name: value for name, value in canonical(config).items() if name not in WHERE}
    return digest({name: value for name, value in counted.items() if value != _DEFAULTS.get(name, absent)})


def same_runs(store: Store, settings: Settings, statuses: Iterable[str]) -> Iterator[RunInfo]:
    """Yield the runs of these settings, the first status first."""
    wanted = identity(settings.record())
    if not settings.unwritten:
        for status in statuses:
            yield from (info for info in store.runs(status=status) if identity(info.config) == wanted)


def finished(store: Store) -> dict[str, RunInfo]:
    """Return the runs of a store that came to their end (or diverged) by identity, the newest of equals."""
    runs = (info for info in reversed(store.runs()) if info.ended and whole(info.config))
    return {identity(info.config): info for info in runs}
