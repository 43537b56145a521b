"""Logs as devices write them (names, timestamps, intervals, matrices) turned into rounds and client numbers.

Time is cut into rounds of one length. The first round begins at a multiple of that length after midnight of the first
day, so that rounds stand at the same times of every day; but a log no longer than a round is one round. A device that
was seen at a time took part in the round of that time; one that was there from a start to an end took part in the
rounds of which it was there for at least half (`least`). Whatever is not known of a device (`?`, NaN or -1 in a matrix)
is neither there nor absent: `Trace.unknown`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..checks import MOST_CLIENTS, Float, fail, fraction, is_missing, positive_int
from ..federation import Ints
from .log_times import DAY, duration, joined, seconds_of, time_text

_MOST_PAIRS = 100_000_000
"""Pairs of a device and a round: more would not fit into memory."""
_COLUMNS = {
    "device": ("device", "client", "id", "name", "phone", "node", "device_id", "client_id", "node_id"),
    "time": ("time", "timestamp", "datetime", "date", "at"),
    "start": ("start", "begin", "from", "start_time"),
    "end": ("end", "stop", "to", "until", "end_time"),
    "round": ("round",),
}
"""What the columns of a log may be called."""
_CLOCKS = ("time", "hour")
"""What the column of the clock may be called beside one called date."""
_STATES = ("online", "state", "status", "available", "is_online", "connected", "present")
"""Columns that may say that the device of the row is not there."""
_AWAY = ("0", "0.0", "false", "no", "off", "offline", "absent", "away", "unavailable", "disconnected", "inactive")
NO_TIMES = "the log has no times: its header must name the columns device and time, or device, start and end"
Fields = dict[str, Any]
"""Arguments of `Trace`, and the `LogSource`."""


class LogSource(NamedTuple):
    """What a log was made of: how many rows were read, and the first and the last time in them, as text."""

    rows: int
    first: str | None = None
    last: str | None = None


def kinds_of(header: Sequence[str], where: str) -> dict[str, int]:
    """Return which column is what, by the names that are known; two of one kind are refused."""
    names = [str(name).strip().lower() for name in header]
    found: dict[str, int] = {}
    for kind, known in _COLUMNS.items():
        places = [place for place, name in enumerate(names) if name in known]
        if kind == "time" and "date" in names and (clock := next((name for name in _CLOCKS if name in names), "")):
            found |= {"date": names.index("date"), "clock": names.index(clock)}
            places = [place for place in places if names[place] not in ("date", clock)] and places
        elif places:
            found[kind] = places[0]
        if len(places) > 1:
            both = " and ".join(names[place] for place in places)
            raise fail(f"{where}, columns", both, f"each could be the {kind}: rename or leave out all but one")
    return found


def states_of(header: Sequence[str]) -> list[int]:
    """Return the columns that may say that a device is not there."""
    return [place for place, name in enumerate(header) if str(name).strip().lower() in _STATES]


def check_state(where: str, row: Any, name: str, value: Any) -> None:
    """Refuse a row that says that its device is not there: neither its times nor its rounds are those of a visit.

    Whether such rows are looks at a device now and then, or changes that hold until the next row, is not said.
    """
    if str(value).strip().lower() in _AWAY:
        allowed = f"by its {name} the device is not there: keep the rows of those that are there, or say from when to"
        raise fail(
            where, row, f"{allowed} when each was (device,start,end); rename the column if it means another thing"
        )


def columns_wanted(kinds: Collection[str]) -> str:
    """Say which columns a log needs, and which of them are missing, by all names that they may have."""
    wanted = ["device", "time"]
    if {"start", "end"} & set(kinds) and "time" not in kinds:
        wanted = ["device", "start", "end"]
    elif "round" in kinds and "time" not in kinds:
        wanted = ["round", "device"]
    missing = (f"{kind} (or {', '.join(_COLUMNS[kind][1:])})" for kind in wanted if kind not in kinds)
    others = "" if "round" in wanted else ", or round and client"
    return f"needs the columns {', '.join(wanted[:-1])} and {wanted[-1]}{others}; missing: {'; '.join(missing)}"


def table_log(columns: Mapping[str, Sequence[Any]], length: Any, where: str, **options: Any) -> Fields:
    """Read a log that has its columns by kind: device with start and end, device with time, or device with round."""
    if "device" in columns and "start" in columns and "end" in columns:
        return interval_log(columns["device"], columns["start"], columns["end"], length, where=where, **options)
    if "device" in columns and "date" in columns:
        times: Any = joined(where, columns["date"], columns["clock"])
        return _visit_log(columns["device"], times, length, where=where, **options)
    if "device" in columns and "time" in columns:
        return _visit_log(columns["device"], columns["time"], length, where=where, **options)
    if "device" in columns and "round" in columns:
        if length is not None:
            raise fail(where, list(columns), NO_TIMES)
        options.pop("unit", None)
        return _round_log(columns["device"], columns["round"], where=where, **options)
    raise fail(where, list(columns), columns_wanted(columns))


def _round_log(
    devices: Sequence[Any], rounds: Any, *, names: Sequence[Any] | None = None, where: str = "log"
) -> Fields:
    """Return the pairs of rounds that have numbers and devices that have names."""
    clients, known = _numbered(devices, names, where)
    found = [_round_number(f"{where}, round {place}", value) for place, value in enumerate(rounds, start=1)]
    if len(found) != clients.size or not found:
        raise fail(where, f"{clients.size} devices, {len(found)} rounds", "must be as many, and at least one")
    numbers = np.array(found, dtype=np.int64)
    return {
        "num_clients": len(known), "num_rounds": max(found) + 1, "rounds": numbers, "clients": clients, "names": known,
        "source": LogSource(len(found)),
    }  # fmt: skip


def _round_number(argument: str, value: Any) -> int:
    text = str(value).strip()
    if not re.fullmatch(r"[0-9]{1,18}(\.0*)?", text):
        raise fail(argument, text, "must be the number of a round, from 0")
    return int(text.partition(".")[0])


def _visit_log(
    devices: Sequence[Any],
    times: Any,
    length: Any,
    *,
    names: Sequence[Any] | None = None,
    unit: str | None = None,
    where: str = "log",
) -> Fields:
    """Return the rounds in which devices were seen at some time."""
    seconds = _length(length, where)
    at, kind = seconds_of(f"{where}, time", times, unit)
    clients, known = _numbered(devices, names, where)
    if at.size != clients.size or not at.size:
        raise fail(where, f"{clients.size} devices, {at.size} times", "must be as many, and at least one")
    origin, start = _origin(float(at.min()), float(np.nextafter(at.max(), np.inf)), seconds)
    rounds = np.floor((at - origin) / seconds).astype(np.int64)
    source = LogSource(at.size, time_text(float(at.min()), kind), time_text(float(at.max()), kind))
    return _fields(clients, rounds, int(rounds.max()) + 1, known, seconds, start, source)


def interval_log(
    devices: Sequence[Any],
    starts: Any,
    ends: Any,
    length: Any,
    *,
    least: float = 0.5,
    names: Sequence[Any] | None = None,
    unit: str | None = None,
    where: str = "log",
) -> Fields:
    """Return the rounds of which devices were there for at least the share `least`."""
    seconds = _length(length, where)
    (begin, first_kind), (stop, last_kind) = (
        seconds_of(f"{where}, {name}", times, unit) for name, times in (("start", starts), ("end", ends))
    )
    if first_kind != last_kind:
        raise fail(where, f"starts are {first_kind}, ends are {last_kind}", "must be times of one kind")
    clients, known = _numbered(devices, names, where)
    if not begin.size == stop.size == clients.size or not begin.size:
        sizes = f"{clients.size} devices, {begin.size} starts, {stop.size} ends"
        raise fail(where, sizes, "must be as many, and at least one")
    if (bad := np.flatnonzero(stop < begin)).size:
        raise fail(f"{where}, interval {bad[0] + 1}", f"{starts[bad[0]]} to {ends[bad[0]]}", "ends before it begins")
    share = fraction("least", least)
    source = LogSource(begin.size, time_text(float(begin.min()), first_kind), time_text(float(stop.max()), first_kind))
    last = max(float(stop.max()), float(np.nextafter(begin.max(), np.inf)))  # of a stay without a length, too
    origin, start = _origin(float(begin.min()), last, seconds)
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
    return _fields(keys[enough] // total, keys[enough] % total, total, known, seconds, start, source)


def matrix_log(matrix: Any) -> Fields:
    """Return the pairs of a matrix of rounds × clients: 1 there, 0 not, and `?`, NaN or -1 where it is not known."""
    if isinstance(matrix, (list, tuple)) and matrix and all(isinstance(row, str) for row in matrix):
        widths = {len(row) for row in matrix}
        if len(widths) > 1:
            raise fail("matrix", f"lines of {sorted(widths)[:4]} characters", "must have one character per client")
        matrix = np.array([list(row) for row in matrix])
    try:
        cells = np.asarray(matrix)
    except ValueError:
        raise fail("matrix", matrix, "must have rows of one length: one number per client") from None
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


def _length(value: Any, where: str) -> float:
    if value is None:
        raise fail("round", None, f"{where} has times: give the length of a round, such as 30min (--round 30min)")
    return duration("round", value)


def _origin(first: float, end: float, seconds: float) -> tuple[float, float]:
    """Return when round 0 begins, and how long after midnight that is; a log no longer than a round is one round."""
    midnight = math.floor(first / DAY) * DAY
    after = math.floor((first - midnight) / seconds) * seconds
    if end - first <= seconds < end - midnight - after:
        after = first - midnight
    return midnight + after, after


def _numbered(devices: Sequence[Any], names: Sequence[Any] | None, where: str) -> tuple[Ints, tuple[str, ...]]:
    """Number the devices: in the order of `names`, which may have more, or sorted."""
    if isinstance(devices, str) or not hasattr(devices, "__iter__"):
        raise fail(f"{where}, devices", devices, "must be a list of names: one for each row")
    missing = next((place for place, name in enumerate(devices, start=1) if is_missing(name)), None)
    if missing is not None:
        raise fail(f"{where}, device {missing}", None, "a device is missing: give its name, or leave the row out")
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


def _fields(
    clients: Ints, rounds: Ints, total: int, names: tuple[str, ...], seconds: float, start: float, source: LogSource
) -> Fields:
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
        "source": source,
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
