"""Times of a log: lengths of rounds; times that are numbers, dates or text; a date and a clock in two columns.

Numbers count seconds, unless a unit is said. What looks like something else (milliseconds, days of a spreadsheet, dates
written as 20261118) is refused, because read as seconds it would put the whole log into one round.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from ..checks import Float, choose, fail, is_missing, number

DAY = 86_400.0
_UNITS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), DAY),
}
"""Of lengths of time, in seconds."""
_TIME_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
"""Of times that are numbers, in seconds."""
_LATEST = datetime(2200, 1, 1, tzinfo=UTC).timestamp()
"""Later than any log: a number that is larger does not count seconds."""
_SINCE_1970 = 1e8
"""Numbers from here on (1973) are moments; smaller ones count from some start of their own."""
_SPREADSHEET = (20_000.0, 80_000.0)
"""Days since 1900, from 1954 to 2119."""
_NUMBERS, _WITHOUT_ZONE, _WITH_ZONE = "numbers", "times without a time zone", "times with a time zone"


def duration(argument: str, value: Any) -> float:
    """Read a length of time in seconds: a number, a timedelta, or text such as "30min", "1h30min", "90 s"."""
    allowed = 'must be a length of time such as "30min", "1h30min" or a number of seconds'
    if isinstance(value, str):
        text = value.strip().lower()
        parts = re.findall(r"([0-9]*\.?[0-9]+)\s*([a-z]*)\s*", text)
        units = [_UNITS.get(unit or ("s" if len(parts) == 1 else "")) for _, unit in parts]
        if not re.fullmatch(r"([0-9]*\.?[0-9]+\s*[a-z]*\s*)+", text) or None in units:
            raise fail(argument, value, allowed)
        value = sum(float(count) * (unit or 0.0) for (count, _), unit in zip(parts, units, strict=True))
    elif isinstance(value, timedelta):
        value = value.total_seconds()
    elif isinstance(value, np.timedelta64):
        value = float(value / np.timedelta64(1, "s"))
    return number(argument, value, 0.0, open_low=True)


def duration_text(seconds: float) -> str:
    """Write a length of time as `duration` reads it: 30min, 1h30min, 7d."""
    parts, rest = [], seconds
    for unit, size in (("d", DAY), ("h", 3600.0), ("min", 60.0)):
        count, rest = divmod(rest, size)
        parts += [f"{count:.0f}{unit}"] if count else []
    return "".join([*parts, f"{rest:g}s"] if rest or not parts else parts)


def time_text(seconds: float, kind: str) -> str:
    """Write a time that `seconds_of` has read: with the zone that it is in, where that is known."""
    if kind == _NUMBERS and abs(seconds) < _SINCE_1970:
        return f"{seconds:,.10g} s"
    moment = datetime.fromtimestamp(int(seconds // 1), UTC)
    return f"{moment:{'%Y-%m-%d %H:%M:%S' if moment.second else '%Y-%m-%d %H:%M'}}" + " UTC" * (kind != _WITHOUT_ZONE)


def seconds_of(argument: str, values: Any, unit: str | None = None) -> tuple[Float, str]:
    """Read times as seconds: numbers, datetime64, datetimes, or text that is a number or ISO 8601; and say which."""
    found, kind = _read_times(argument, values)
    if kind != _NUMBERS:
        if unit is not None:
            raise fail("unit", unit, f"is for times that are numbers; {argument} has {kind}")
        return found, kind
    found = found * choose("unit", "s" if unit is None else unit, _TIME_UNITS)
    if (late := np.flatnonzero(found > _LATEST)).size:
        allowed = (
            'in seconds from 1970 it lies beyond the year 2200: are these milliseconds? Say so: unit="ms" (or us, ns)'
        )
        raise fail(f"{argument} {late[0] + 1}", float(found[late[0]]), allowed)
    if unit is None and (dates := _dates_in_numbers(found)):
        allowed = (
            f'these numbers look like {dates}: write times as 2026-11-18 04:30, or say unit="s" if they are seconds'
        )
        raise fail(f"{argument} 1", float(found[0]), allowed)
    return found, kind


def _dates_in_numbers(found: Float) -> str:
    """What numbers look like that would be odd as seconds: all of them dates, or days with a time in the fraction."""
    if not found.size:
        return ""
    whole = np.clip(found, 0.0, 1e9).astype(np.int64)
    year, month, day = whole // 10_000, whole // 100 % 100, whole % 100
    inside = (year >= 1900) & (year < 2200) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)
    if (inside & (found == whole)).all():
        return "dates (20261118)"
    low, high = _SPREADSHEET
    serial = (found >= low) & (found <= high)
    return "days of a spreadsheet (46344.19)" if serial.all() and (found != whole).any() else ""


def joined(where: str, dates: Sequence[Any], clocks: Sequence[Any]) -> list[str]:
    """Return times of dates and clocks that are in two columns: 2026-11-18 with 4:30, or with 4 for the hour."""
    return [_joined(f"{where}, time {place}", *pair) for place, pair in enumerate(zip(dates, clocks, strict=True), 1)]


def _joined(argument: str, date: Any, clock: Any) -> str:
    if is_missing(date) or is_missing(clock):
        raise fail(argument, None, "a time is missing")
    # A data frame has midnight with its dates, and seconds with its clocks.
    day = re.fullmatch(r"(\d{4}-?\d\d-?\d\d)([T ]00:00(:00(\.0*)?)?)?", str(date).strip())
    time = re.fullmatch(r"(\d{1,2})(?:\.0*|(:\d\d.*))?", str(clock).strip())
    if not day or not time:
        allowed = "its date and its clock are two columns, which must be such as 2026-11-18 and 04:30 (or the hour)"
        raise fail(argument, f"{date} {clock}", allowed)
    return f"{day[1]} {int(time[1]):02d}{time[2] or ':00'}"


def _read_times(argument: str, values: Any) -> tuple[Float, str]:
    array = values.to_numpy() if hasattr(values, "to_numpy") else np.asarray(values)
    if array.ndim != 1:
        raise fail(argument, f"array of shape {array.shape}", "must be one-dimensional")
    if array.dtype.kind == "M":
        if np.isnat(array).any():
            raise fail(f"{argument} {int(np.flatnonzero(np.isnat(array))[0]) + 1}", "NaT", "a time is missing")
        return np.asarray(array.astype("datetime64[us]").astype(np.int64) / 1e6), _WITHOUT_ZONE
    if array.dtype.kind in "iuf":
        found = array.astype(np.float64)
        if not np.isfinite(found).all():
            raise fail(f"{argument} {int(np.flatnonzero(~np.isfinite(found))[0]) + 1}", "NaN", "a time is missing")
        return found, _NUMBERS
    read = [_moment(f"{argument} {place}", value) for place, value in enumerate(array.tolist(), start=1)]
    kinds = sorted({kind for _, kind in read})
    if kinds == [_WITH_ZONE, _WITHOUT_ZONE]:
        raise fail(argument, "times with and without a time zone", "must have one in all of them or in none")
    if len(kinds) > 1:
        raise fail(argument, " and ".join(kinds), "must be times of one kind")
    return np.array([second for second, _ in read], dtype=np.float64), kinds[0] if kinds else _NUMBERS


def _moment(argument: str, value: Any) -> tuple[float, str]:
    """Seconds of one time, and of which kind it is; one without a time zone is taken as it stands."""
    allowed = "must be seconds or a time such as 2026-11-18 04:30:00"
    if is_missing(value):
        raise fail(argument, value, "a time is missing")
    if isinstance(value, (int, float)):
        return number(argument, value), _NUMBERS
    if not isinstance(value, datetime):
        text = str(value).strip()
        try:
            return number(argument, float(text)), _NUMBERS
        except ValueError:
            pass
        try:
            value = datetime.fromisoformat(text)
        except ValueError:
            raise fail(argument, text, allowed) from None
    aware = value.tzinfo is not None
    seconds = (value if aware else value.replace(tzinfo=UTC)).timestamp()
    return seconds, _WITH_ZONE if aware else _WITHOUT_ZONE
