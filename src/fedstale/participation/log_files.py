"""Participation logs as CSV files: `round,client` pairs, or device names with times (spec §5).

    # comments and blank lines are skipped
    round,client
    0,3
    0,17
    2,3

Rounds and clients are numbered from 0; the header is optional, and may name the columns in another order and among
others, with semicolons or tabs between them; the order of the lines does not matter; a pair that appears twice counts
once (a device that connected twice in a round took part in it once). A round without a line is a round in which nobody
came. The comment `# num_rounds=500 num_clients=24`, which `Trace.to_csv` writes, keeps empty rounds at the end and
clients that never came; arguments given to `Trace.from_csv` take precedence. Rounds in which nothing is known of a
client are the comment `# unknown client=3 rounds=0-17`; names and times are kept in comments, too. A log whose header
names the columns round and device has names for numbers; one with device and time, or device, start and end, is cut
into rounds (`logs`). Lines of 0, 1 and ? are a matrix: a line for each round, a character for each client.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Sequence
from itertools import dropwhile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..checks import MOST_CLIENTS, InvalidInput, client_count, fail, positive_int
from . import logs
from .log_times import duration

LARGEST_ROUND = 2**62
_SIZES = re.compile(r"#\s*num_rounds=([0-9]+)\s+num_clients=([0-9]+)\s*$")
_MATRIX = re.compile(r"[01?]{2,}")
_NAME = re.compile(r'#\s*name client=([0-9]{1,18}) (".*")\s*$')
_TIMES = re.compile(r"#\s*round_seconds=([0-9.e+-]{1,30}) start_seconds=([0-9.e+-]{1,30})\s*$")
_UNKNOWN = re.compile(r"#\s*unknown client=([0-9]{1,18}) rounds=([0-9]{1,18})-([0-9]{1,18})\s*$")


def read_log(
    path: str | Path,
    num_clients: int | None,
    num_rounds: int | None,
    round: Any = None,
    unit: str | None = None,
) -> logs.Fields:
    """Return the arguments of `Trace` that a file holds."""
    if num_clients is not None:
        client_count("num_clients", num_clients)
    if num_rounds is not None:
        positive_int("num_rounds", num_rounds)
    if not isinstance(path, (str, Path)):
        raise fail("path", path, "must name a file")
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a UTF-8 text file"
        raise fail("path", str(path), f"cannot be read as a trace ({reason})") from error
    header = next((line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")), "")
    if _MATRIX.fullmatch(header):
        return _characters(lines, str(path), num_clients, num_rounds, round)
    if _has_names(header, str(path)):
        return _extended(_named(lines, str(path), round, unit), num_clients, num_rounds, str(path))
    if round is not None:
        raise fail(f"{path}, header", header, logs.NO_TIMES) if header else fail("path", str(path), "holds no line")
    for line in lines:
        if match := _SIZES.match(line.strip()):
            if max(map(len, match.groups())) > 20 or int(match[1]) > LARGEST_ROUND or int(match[2]) > MOST_CLIENTS:
                raise fail(str(path), line.strip(), f"at most {LARGEST_ROUND:,} rounds, {MOST_CLIENTS:,} clients")
            num_rounds = int(match[1]) if num_rounds is None else num_rounds
            num_clients = int(match[2]) if num_clients is None else num_clients
            break
    rounds, clients = _parse(lines, str(path), num_rounds, num_clients)
    if not rounds and (num_rounds is None or num_clients is None):
        raise fail("path", str(path), "holds no round,client pair: give num_rounds and num_clients")
    fields: logs.Fields = {
        "num_clients": max(clients) + 1 if num_clients is None else num_clients,
        "num_rounds": max(rounds) + 1 if num_rounds is None else num_rounds,
        "rounds": np.array(rounds, dtype=np.int64),
        "clients": np.array(clients, dtype=np.int64),
        "source": logs.LogSource(len(rounds)),
    }
    return fields | _comments(lines, str(path), fields["num_clients"])


def _comments(lines: Sequence[str], path: str, num_clients: int) -> logs.Fields:
    """Read what `write_log` keeps in comments beside the sizes: what is not known, names, times."""
    comments = [line.strip() for line in lines if line.startswith("#")]
    fields: logs.Fields = {}
    unknown = _unknown_rows(comments)
    if unknown is not None:
        fields["unknown"] = unknown
    try:
        names = {int(match[1]): json.loads(match[2]) for line in comments if (match := _NAME.match(line))}
        for match in filter(None, map(_TIMES.match, comments)):
            fields |= {"round_seconds": float(match[1]), "start_seconds": float(match[2])}
    except ValueError as error:
        raise fail(path, str(error), "a comment with a name or a time is damaged") from None
    if names:
        # Clients that were added to the log have none.
        fields["names"] = tuple(str(names.get(client, client)) for client in range(num_clients))
    return fields


def log_text(fields: logs.Fields) -> str:
    """Write a log so that `read_log` gives it back whole.

    Parameters
    ----------
    fields
        Of a `Trace`: num_rounds, num_clients, rounds, clients, unknown, names, round_seconds, start_seconds.
    """
    head = [f"# num_rounds={fields['num_rounds']} num_clients={fields['num_clients']}"]
    if fields["round_seconds"] is not None:
        head.append(f"# round_seconds={float(fields['round_seconds'])} start_seconds={float(fields['start_seconds'])}")
    head += [f"# name client={i} {json.dumps(name)}" for i, name in enumerate(fields["names"] or ())]
    rows = [] if fields["unknown"] is None else np.asarray(fields["unknown"]).tolist()
    head += [f"# unknown client={i} rounds={first}-{stop - 1}" for i, first, stop in rows]
    pairs = zip(np.asarray(fields["rounds"]).tolist(), np.asarray(fields["clients"]).tolist(), strict=True)
    return "\n".join([*head, "round,client", *(f"{t},{i}" for t, i in pairs)]) + "\n"


def _characters(
    lines: Sequence[str], path: str, num_clients: int | None, num_rounds: int | None, length: Any
) -> logs.Fields:
    """Read a matrix of characters; what else is said of its size must agree with it."""
    fields = logs.matrix_log([line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")])
    for name, given in (("num_clients", num_clients), ("num_rounds", num_rounds)):
        if given not in (None, fields[name]):
            raise fail(name, given, f"{path} has {fields[name]}")
    fields["source"] = logs.LogSource(fields["num_rounds"])
    return fields if length is None else {**fields, "round_seconds": duration("round", length)}


def _extended(fields: logs.Fields, num_clients: int | None, num_rounds: int | None, path: str) -> logs.Fields:
    """Add clients who never came and rounds in which nobody did."""
    n, length = num_clients or fields["num_clients"], num_rounds or fields["num_rounds"]
    if n < fields["num_clients"] or length < fields["num_rounds"]:
        what = f"{fields['num_clients']} devices, {fields['num_rounds']} rounds"
        raise fail(path, what, f"more than the {n} clients and {length} rounds that are asked for")
    more = tuple(f"not in the log {k}" for k in range(1, n - fields["num_clients"] + 1))
    return {**fields, "num_clients": n, "num_rounds": length, "names": (*fields["names"], *more)}


def _has_names(header: str, path: str) -> bool:
    """Whether the first line of a log names devices with times, or with rounds; a column client has numbers there.

    A first line without a number that names neither is refused: it was meant as a header.
    """
    columns = [column.strip().lower() for column in _split(header)]
    kinds = logs.kinds_of(columns, path)
    timed = "device" in kinds and ({"time", "date"} & kinds.keys() or {"start", "end"} <= kinds.keys())
    numbered = "device" in kinds and "round" in kinds
    if not timed and not numbered and columns and not any(re.match(r"[-+.]?\d", column) for column in columns):
        raise fail(f"{path}, header", header, logs.columns_wanted(kinds))
    return bool(timed) or (numbered and columns[kinds["device"]] != "client")


def _split(line: str, like: str | None = None) -> list[str]:
    """Cut a line at the commas, semicolons or tabs that it, or the line that it is like, has most of."""
    return next(csv.reader([line], delimiter=_delimiter(like or line)), [])


def _delimiter(line: str) -> str:
    return max(",;\t", key=line.count)


def _named(lines: Sequence[str], path: str, round: Any, unit: str | None) -> logs.Fields:
    """Read a log with device names and times or rounds; an error names the line."""
    numbered = [(place, line) for place, line in enumerate(lines, start=1) if line.strip()]
    kept = list(dropwhile(lambda pair: pair[1].lstrip().startswith("#"), numbered))
    head = kept[0][1]
    header = _split(head)
    places, states = logs.kinds_of(header, path), logs.states_of(header)
    if "time" in places or "date" in places or {"start", "end"} <= places.keys():
        places.pop("round", None)
    columns: dict[str, list[str]] = {kind: [] for kind in places}
    for place, line in kept[1:]:
        cells = _split(line, head)
        if len(cells) != len(header):
            if line.startswith("#"):  # a comment; with as many columns, a device that is called so
                continue
            raise _bad_line(path, place, line.strip(), f"must have {len(header)} columns, as the header has")
        for kind, column in places.items():
            if not cells[column].strip():
                raise _bad_line(path, place, line.strip(), f"its {header[column].strip()} is missing")
            columns[kind].append(cells[column].strip())
        for column in states:
            logs.check_state(f"{path}, line {place}", line.strip(), header[column].strip(), cells[column])
    if not columns["device"]:
        raise fail("path", path, "holds no line but the header")
    return logs.table_log(columns, round, path, unit=unit)


def _unknown_rows(lines: Iterable[str]) -> ArrayLike | None:
    found = [match.groups() for line in lines if (match := _UNKNOWN.match(line.strip()))]
    return np.array([(int(i), int(a), int(b) + 1) for i, a, b in found], dtype=np.int64) if found else None


def _parse(
    lines: Iterable[str], path: str, num_rounds: int | None, num_clients: int | None
) -> tuple[list[int], list[int]]:
    """Return the pairs; an error names the line."""
    rounds: list[int] = []
    clients: list[int] = []
    top_round = LARGEST_ROUND if num_rounds is None else num_rounds
    top_client = MOST_CLIENTS if num_clients is None else num_clients
    names: list[str] = []
    states: list[int] = []
    delimiter, at = "", (0, 1)
    for number, line in enumerate(lines, start=1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        first, delimiter = not delimiter, delimiter or _delimiter(text)
        fields = [part.strip() for part in text.split(delimiter)]
        if first and {"round", "client"} <= {part.strip('"').lower() for part in fields}:
            names = [part.strip('"').lower() for part in fields]
            at, states = (names.index("round"), names.index("client")), logs.states_of(names)
            continue
        pair = (fields[at[0]], fields[at[1]]) if len(fields) == (len(names) or 2) else ()
        if not pair or not all(re.fullmatch(r"[+-]?[0-9]{1,30}", part) for part in pair):
            allowed = f"two integers, {delimiter.join(names)}" if names else "two integers: round,client"
            raise _bad_line(path, number, text, f"must be {allowed}")
        for column in states:
            logs.check_state(f"{path}, line {number}", text, names[column], fields[column])
        t, i = int(pair[0]), int(pair[1])
        if not 0 <= t < top_round:
            raise _bad_line(path, number, text, f"the round must lie in 0 … {top_round - 1}")
        if not 0 <= i < top_client:
            raise _bad_line(path, number, text, f"the client must lie in 0 … {top_client - 1}")
        rounds.append(t)
        clients.append(i)
    return rounds, clients


def _bad_line(path: str, number: int, text: str, allowed: str) -> InvalidInput:
    return fail(f"{path}, line {number}", text, allowed)
