"""A run's config as text, as a hash and as rows to filter on.

The hash decides whether a sweep has this run already: it is the SHA-256 of canonical JSON, in which the order
of keys does not count and 1.0 is 1.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

import numpy as np

from ..checks import fail

Config = Mapping[str, Any]

_EXACT = 2**53  # beyond it a float that looks whole stands for many integers


def to_json(config: Config) -> str:
    """Return the config as JSON text, or fail on the first value that JSON does not know."""
    if not isinstance(config, Mapping):
        raise fail("config", config, "must be a dict")
    return json.dumps(_plain("config", config))


def digest(config: Config) -> str:
    """SHA-256 of the config's canonical JSON."""
    text = json.dumps(_canonical(json.loads(to_json(config))), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def config_leaves(config: Config) -> Iterator[tuple[str, float | str]]:
    """Yield (dotted key, value) of every leaf, values as `comparable` has them."""
    for key, value in config.items():
        if isinstance(value, dict) and value:
            yield from ((f"{key}.{inner}", leaf) for inner, leaf in config_leaves(value))
        else:
            yield key, comparable(value)


def comparable(value: Any) -> float | str:
    """A value as the store compares it: numbers as numbers, everything else as JSON text (so "1" is not 1)."""
    value = _plain("value", value)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 2**63:
        return value
    return json.dumps(_canonical(value), sort_keys=True)


def _plain(location: str, value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str) or not key.isprintable():
                raise fail(f"{location} key", key, "must be printable text")
        return {key: _plain(f"{location}.{key}", inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [_plain(f"{location}[{k}]", inner) for k, inner in enumerate(value)]
    if isinstance(value, PurePath):
        return str(value)
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float) and np.isfinite(value):
        return value
    raise fail(location, value, "must be a string, finite number, bool, None, list or dict of these")


def _canonical(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _canonical(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_canonical(inner) for inner in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return int(value)
    return value
