"""Logs as devices write them (names, timestamps, intervals, matrices) turned into rounds and client numbers.

Time is cut into rounds of one length. The first round begins at a multiple of that length after midnight of the first
day, so that rounds stand at the same times of every day. A device that was seen at a time took part in the round of
that time; one that was there from a start to an end took part in the rounds of which it was there for at least half
(`least`). Whatever is not known of a device (`?`, NaN or -1 in a matrix) is neither there nor absent: `Trace.unknown`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..checks import MOST_CLIENTS, Float, fail, fraction, number, positive_int
from ..federation import Ints

DAY = 86_400.0
_UNITS = {"s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "hour": 3600.0, "d": DAY, "day": DAY}
_MOST_PAIRS = 100_000_000
"""Pairs of a device and a round: more would not fit into memory."""
COLUMNS = {
    "device": ("device", "client", "id", "name", "phone", "node", "device_id", "client_id", "node_id"),
    "time": ("time", "timestamp", "datetime", "date", "at"),
    "start": ("start", "begin", "from", "start_time"),
    "end": ("end", "stop", "to", "until", "end_time"),
    "round": ("round",),
}
"""What the columns of a log may be called."""
Fields = dict[str, Any]
"""Arguments of `Trace`."""


def duration(argument: str, value: Any) -> float:
    """Read a length of time in seconds: a number, or text such as "30min", "1h", "90 s"."""
    allowed = 'must be a length of time such as "30min", "1h" or a number of seconds'
    if isinstance(value, str):
        match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([a-z]*?)s?\s*", value.lower())
        unit = None if match is None else _UNITS.get(match[2] or "s")
        if match is None or unit is None:
            raise fail(argument, value, allowed)
        value = float(match[1]) * unit
    return number(argument, value, 0.0, open_low=True)


def kinds_of(header: Sequence[str]) -> dict[str, int]:
    """Return which column is what, by the names that are known; the first of each kind."""
    names = [str(name).strip().lower() for name in header]
    found = {}
    for kind, known in COLUMNS.items():
        for place, name in enumerate(names):
            if name in known and kind not in found:
                found[kind] = place
    return found


def table_log(columns: Mapping[str, Sequence[Any]], length: Any, where: str, **options: Any) -> Fields:
    """Read a log that has its columns by kind: device with start and end, device with time, or device with round."""
    if "device" in columns and "start" in columns and "end" in columns:
        return interval_log(columns["device"], columns["start"], columns["end"], length, where=where, **options)
    if "device" in columns and "time" in columns:
        options.pop("least", None)
        return _visit_log(columns["device"], columns["time"], length, where=where, **options)
    known = "; ".join(f"{kind}: {', '.join(names[:4])}" for kind, names in COLUMNS.items())
    allowed = f"needs the columns device and time, device, start and end, or round and client ({known})"
    raise fail(where, list(columns), allowed)


def _visit_log(
    devices: Sequence[Any], times: Any, length: Any, *, names: Sequence[Any] | None = None, where: str = "log"
) -> Fields:
    """Return the rounds in which devices were seen at some time."""
    seconds, at = _length(length, where), _seconds_of(f"{where}, time", times)
    clients, known = _numbered(devices, names, where)
    if at.size != clients.size or not at.size:
        raise fail(where, f"{clients.size} devices, {at.size} times", "must be as many, and at least one")
    origin, start = _origin(float(at.min()), seconds)
    rounds = np.floor((at - origin) / seconds).astype(np.int64)
    return _fields(clients, rounds, int(rounds.max()) + 1, known, seconds, start)


def interval_log(
    devices: Sequence[Any],
    starts: Any,
    ends: Any,
    length: Any,
    *,
    least: float = 0.5,
    names: Sequence[Any] | None = None,
    where: str = "log",
) -> Fields:
    """Return the rounds of which devices were there for at least the share `least`."""
    seconds = _length(length, where)
    begin, stop = _seconds_of(f"{where}, start", starts), _seconds_of(f"{where}, end", ends)
    clients, known = _numbered(devices, names, where)
    if not begin.size == stop.size == clients.size or not begin.size:
        sizes = f"{clients.size} devices, {begin.size} starts, {stop.size} ends"
        raise fail(where, sizes, "must be as many, and at least one")
    if (bad := np.flatnonzero(stop < begin)).size:
        raise fail(f"{where}, interval {bad[0] + 1}", f"{starts[bad[0]]} to {ends[bad[0]]}", "ends before it begins")
    share = fraction("least", least)
    origin, start = _origin(float(begin.min()), seconds)
    clients, begin, stop = _merged(clients, (begin - origin) / seconds, (stop - origin) / seconds)
    first = np.floor(begin).astype(np.int64)
    count = np.maximum(np.ceil(stop).astype(np.int64) - first, 1)
    if count.sum() > _MOST_PAIRS:
        raise fail("round", length, f"so short that the log has {count.sum():,} rounds of devices: choose a longer one")
    row = np.repeat(np.arange(len(count)), count)
    rounds = first[row] + np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    there = np.minimum(stop[row], rounds + 1) - np.maximum(begin[row], rounds)
    total = int(rounds.max()) + 1
    keys, inverse = np.unique(clients[row] * total + rounds, return_inverse=True)
    enough = np.bincount(inverse, weights=there) >= max(share, 1e-12) - 1e-9
    return _fields(keys[enough] // total, keys[enough] % total, total, known, seconds, start)


def matrix_log(matrix: Any) -> Fields:
    """Return the pairs of a matrix of rounds × clients: 1 there, 0 not, and `?`, NaN or -1 where it is not known."""
    if isinstance(matrix, (list, tuple)) and matrix and all(isinstance(row, str) for row in matrix):
        widths = {len(row) for row in matrix}
        if len(widths) > 1:
            raise fail("matrix", f"lines of {sorted(widths)[:4]} characters", "must have one character per client")
        matrix = np.array([list(row) for row in matrix])
    cells = np.asarray(matrix)
    if cells.ndim != 2 or not cells.size:
        raise fail("matrix", f"array of shape {cells.shape}", "must have one row per round and one column per client")
    there, absent, unknown = _cells(cells)
    if (bad := np.argwhere(~(there | absent | unknown))).size:
        t, i = map(int, bad[0])
        raise fail(f"matrix[{t}, {i}]", str(cells[t, i]), "must be 1 (there), 0 (not) or ?, NaN, -1 (not known)")
    rounds, clients = np.nonzero(there)
    fields: Fields = {"num_clients": cells.shape[1], "num_rounds": cells.shape[0], "rounds": rounds, "clients": clients}
    if unknown.any():
        fields["unknown"] = _runs_of(unknown)
    return fields


def _runs_of(mask: NDArray[np.bool_]) -> Ints:
    """Return where a mask of rounds × clients is true: rows (client, first round, round after the last)."""
    edge = np.zeros((1, mask.shape[1]), dtype=np.int8)
    change = np.diff(np.concatenate([edge, mask.astype(np.int8), edge]), axis=0)
    clients, first = np.nonzero(change.T == 1)
    stop = np.nonzero(change.T == -1)[1]
    return np.stack([clients, first, stop], axis=1).astype(np.int64)


def _seconds_of(argument: str, values: Any) -> Float:
    """Read times as seconds: numbers, datetime64, datetimes, or text that is a number or ISO 8601."""
    array = values.to_numpy() if hasattr(values, "to_numpy") else np.asarray(values)
    if array.ndim != 1:
        raise fail(argument, f"array of shape {array.shape}", "must be one-dimensional")
    if array.dtype.kind == "M":
        if np.isnat(array).any():
            raise fail(f"{argument} {int(np.flatnonzero(np.isnat(array))[0]) + 1}", "NaT", "a time is missing")
        return np.asarray(array.astype("datetime64[us]").astype(np.int64) / 1e6)
    if array.dtype.kind in "iuf":
        found = array.astype(np.float64)
        if not np.isfinite(found).all():
            raise fail(f"{argument} {int(np.flatnonzero(~np.isfinite(found))[0]) + 1}", "NaN", "a time is missing")
        return found
    read = [_moment(f"{argument} {place}", value) for place, value in enumerate(array.tolist(), start=1)]
    if len({zone for _, zone in read}) > 1:
        raise fail(argument, "times with and without a time zone", "must have one in all of them or in none")
    return np.array([second for second, _ in read], dtype=np.float64)


def _moment(argument: str, value: Any) -> tuple[float, bool]:
    """Seconds of one time, and whether it has a time zone; one without is taken as it stands."""
    allowed = "must be seconds or a time such as 2026-11-18 04:30:00"
    if isinstance(value, (int, float)):
        return number(argument, value), False
    if not isinstance(value, datetime):
        text = str(value).strip()
        try:
            return number(argument, float(text)), False
        except ValueError:
            pass
        try:
            value = datetime.fromisoformat(text)
        except ValueError:
            raise fail(argument, text, allowed) from None
    aware = value.tzinfo is not None
    return (value if aware else value.replace(tzinfo=UTC)).timestamp(), aware


def _length(value: Any, where: str) -> float:
    if value is None:
        raise fail("round", None, f"{where} has times: give the length of a round, such as 30min (--round 30min)")
    return duration("round", value)


def _origin(first: float, seconds: float) -> tuple[float, float]:
    """Return when round 0 begins, and how long after midnight that is."""
    midnight = math.floor(first / DAY) * DAY
    after = math.floor((first - midnight) / seconds) * seconds
    return midnight + after, after


def _numbered(devices: Sequence[Any], names: Sequence[Any] | None, where: str) -> tuple[Ints, tuple[str, ...]]:
    """Number the devices: in the order of `names`, which may have more, or sorted."""
    seen = [str(name).strip() for name in devices]
    if names is None:
        known = tuple(sorted(set(seen), key=_natural))
    else:
        known = tuple(str(name).strip() for name in names)
        if len(set(known)) != len(known):
            raise fail("names", names, "a device is named twice")
    number_of = {name: place for place, name in enumerate(known)}
    stranger = next((name for name in seen if name not in number_of), None)
    if stranger is not None:
        raise fail(where, stranger, "a device that is not among the names")
    return np.array([number_of[name] for name in seen], dtype=np.int64), known


def _natural(name: str) -> list[Any]:
    """Sort phone-2 before phone-10."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name) if part]


def _merged(clients: Ints, begin: Float, stop: Float) -> tuple[Ints, Float, Float]:
    """Join the intervals of a device that overlap: a minute that two of them tell of is one minute."""
    order = np.lexsort((begin, clients))
    clients, begin, stop = clients[order], begin[order], stop[order]
    keep: list[list[float]] = []
    for client, a, b in zip(clients.tolist(), begin.tolist(), stop.tolist(), strict=True):
        if keep and keep[-1][0] == client and a <= keep[-1][2]:
            keep[-1][2] = max(keep[-1][2], b)
        else:
            keep.append([client, a, b])
    joined = np.array(keep, dtype=np.float64)
    return joined[:, 0].astype(np.int64), joined[:, 1], joined[:, 2]


def _fields(clients: Ints, rounds: Ints, total: int, names: tuple[str, ...], seconds: float, start: float) -> Fields:
    if len(names) > MOST_CLIENTS:
        raise fail("log", f"{len(names):,} devices", f"must be at most {MOST_CLIENTS:,}")
    return {
        "num_clients": len(names),
        "num_rounds": positive_int("number of rounds", total),
        "rounds": rounds,
        "clients": clients,
        "names": names,
        "round_seconds": seconds,
        "start_seconds": start,
    }


def _cells(cells: NDArray[Any]) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
    """Return where a matrix says there, absent, not known."""
    if cells.dtype.kind in "US":
        text = np.char.strip(cells.astype(np.str_))
        return text == "1", text == "0", np.isin(text, ("?", "", "nan", "-1"))
    try:
        values: ArrayLike = cells.astype(np.float64)
    except (TypeError, ValueError):
        return _cells(cells.astype(np.str_))
    numbers = np.asarray(values)
    return numbers == 1.0, numbers == 0.0, np.isnan(numbers) | (numbers == -1.0)
