"""`fedstale advise --times`: a deadline from a log of how long replies took."""

from __future__ import annotations

import csv
from dataclasses import asdict
from pathlib import Path

from ..checks import InvalidInput, counted
from .options import print_json, say

_COLUMNS = ("round", "client", "seconds")


def show_deadline(path: Path, *, as_json: bool) -> None:
    """Read the log, and say which deadline it recommends."""
    from ..clock import advise_deadline
    from ..clock.deadline import FEW_ROUNDS

    advice = advise_deadline(*_read(path))
    if as_json:
        print_json({"deadline_advice": asdict(advice)})
        return
    gain = f"for the same noise of the average, {advice.times_faster:.3g} times as fast"
    if advice.worthwhile:
        never = f"; {counted(advice.never, 'client')} never in time" if advice.never else ""
        say(f"deadline: {advice.deadline:.4g} s; {advice.in_time:.1%} of those asked answer before it{never}.")
        say(f"A round lasts {advice.seconds:.4g} s instead of {advice.seconds_without:.4g} s; {gain}.")
        if advice.never:
            say("Let late replies feed the memory: without it, a client that is never in time is not learned from.")
    else:
        say(f"No deadline: wait for the slowest. The best one would be {advice.deadline:.4g} s, and,")
        say(f"{gain}: too little to tell.")
    if advice.rounds < FEW_ROUNDS:
        say(f"A guess: a client was asked in {counted(advice.rounds, 'round')} only.")


def _read(path: Path) -> tuple[list[int], list[int], list[float]]:
    """Read round,client,seconds; seconds are empty where no reply came."""
    rounds, clients, seconds = list[int](), list[int](), list[float]()
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            for number, row in enumerate(csv.reader(file), 1):
                if not row or row[0].startswith("#") or tuple(cell.strip() for cell in row) == _COLUMNS:
                    continue
                try:
                    one, client, took = row
                    rounds.append(int(one))
                    clients.append(int(client))
                    seconds.append(float(took) if took.strip() else float("inf"))
                except ValueError:
                    raise InvalidInput(f"{path}, line {number}: must be round,client,seconds") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} cannot be read: {getattr(error, 'strerror', None) or 'not UTF-8 text'}") from None
    if not rounds:
        raise InvalidInput(f"{path} has no line round,client,seconds")
    return rounds, clients, seconds
