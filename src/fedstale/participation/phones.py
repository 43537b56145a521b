"""`participation="phones"`: 723 phones over five days in half-hours, from the state traces of the FLASH study.

Yang et al., *Characterizing Impacts of Heterogeneity in Federated Learning upon Large-Scale Smartphone Data*, WWW 2021.
A phone is there while it is idle, charging and on Wi-Fi. The file has one line per half-hour and one character per
phone: 1 there, 0 not, `?` not known (before its trace begins, after it ends, and where it is silent). It is *derived*
from the study's own traces (`data/state_traces.json` of its repository, BSD-2), which are events with times.
Which hour the first line is does not matter here and is not known; a day is 48 lines.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ..checks import choose, fail
from .bootstrap import Bootstrap, drawn_devices
from .daily import DailyMarkov
from .processes import Process
from .trace import Trace

FILE = "availability-phones.txt"
SHA256 = "7179b6661ad450d9bba408170786b2d5b598f363f8063796ab25a8c7346b1827"
_HALF_HOUR = 1800.0
_PHONES = 723
_MODEL: dict[str, Any] = {"mean_p": 0.0805, "never": 0.2918, "inverse_p": 32.59, "persistence": 0.6875, "rounds": 198}
_PROFILE = (
    0.0900,
    0.0890,
    0.0929,
    0.1035,
    0.1052,
    0.1103,
    0.1141,
    0.1174,
    0.1184,
    0.1209,
    0.1207,
    0.1166,
    0.1190,
    0.1088,
    0.1019,
    0.1005,
    0.0897,
    0.0863,
    0.0812,
    0.0802,
    0.0748,
    0.0711,
    0.0668,
    0.0629,
    0.0616,
    0.0650,
    0.0602,
    0.0534,
    0.0587,
    0.0563,
    0.0575,
    0.0610,
    0.0637,
    0.0665,
    0.0689,
    0.0704,
    0.0757,
    0.0791,
    0.0668,
    0.0642,
    0.0605,
    0.0567,
    0.0577,
    0.0648,
    0.0665,
    0.0747,
    0.0815,
    0.0868,
)
"""Statistics of the file, which `kind="model"` needs instead of it; a test compares them where the file is there."""


def read_phones(path: str | Path) -> Trace:
    """Read a file of the form above: one line per half-hour, one character per phone."""
    try:
        lines = Path(path).read_text(encoding="ascii").split()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a plain text file"
        raise fail("path", str(path), f"cannot be read as availability of phones ({reason})") from error
    if not lines:
        raise fail("path", str(path), "is empty")
    return replace(Trace.from_matrix(lines), round_seconds=_HALF_HOUR)


def _verified_phones(path: str | Path) -> Trace:
    """Read the file of the FLASH phones, and no other: its SHA-256 is known."""
    return _verified(str(path), Path(path).stat().st_mtime_ns if Path(path).exists() else 0)


@lru_cache(maxsize=2)
def _verified(path: str, changed: int) -> Trace:
    if changed and hashlib.sha256(Path(path).read_bytes()).hexdigest() != SHA256:
        raise fail("path", path, f"is not {FILE} of the FLASH phones: its SHA-256 differs (own logs: Trace.from_csv)")
    return read_phones(path)


def phones(
    path: str | Path | None = None,
    num_clients: int | None = None,
    kind: str = "bootstrap",
    devices: int = 0,
    only_seen: bool = False,
    repeat: bool = False,
) -> Process:
    """Return the phones as a process.

    Parameters
    ----------
    path
        The file; "model" needs none.
    num_clients
        N; default: all 723 phones. Which phones they are is drawn.
    kind
        "bootstrap": whole days drawn again, any N and any number of rounds; "replay": the 241 half-hours as they were,
        N at most 723; "model": a fitted `DailyMarkov`, any N and any number of rounds.
    devices
        Seed of the draw of the phones (of the rates, for "model"): the clients are the same for every seed of a run.
    only_seen
        Whether phones that never came (that never come, for "model") are left out.
    repeat
        "replay" alone: whether the five days start over after their end.
    """
    n = num_clients or _PHONES
    if repeat and kind != "replay":
        raise fail("repeat", repeat, f'"{kind}" has no end')
    if kind == "model":
        return DailyMarkov.of_statistics(n, **_MODEL, profile=_PROFILE, seed=devices, only_seen=only_seen)
    if path is None:
        raise fail("path", None, f"must name {FILE}")
    trace = _verified_phones(path)
    kinds: dict[str, Callable[[], Process]] = {
        "bootstrap": lambda: Bootstrap.sample(trace, n, seed=devices, only_seen=only_seen),
        "replay": lambda: _replay(trace, n, devices, only_seen, repeat),
    }
    return choose("kind of phones", kind, {**kinds, "model": kinds["bootstrap"]})()


def _replay(trace: Trace, n: int, seed: int, only_seen: bool, repeat: bool) -> Trace:
    most = int((trace.counts() > 0).sum()) if only_seen else trace.num_clients
    if n > most:
        raise fail("num_clients", n, f'a replay has at most {most} phones; kind="bootstrap" has any number')
    chosen = trace.subset(np.sort(drawn_devices(trace, n, seed, only_seen)))
    if not repeat:
        return chosen
    whole = trace.num_rounds // (trace.rounds_per_day or 1) * (trace.rounds_per_day or 1)
    days = Trace.from_matrix(np.where(chosen.known(), chosen.matrix(), -1)[:whole])  # midnight follows midnight
    return replace(days, repeat=True, round_seconds=trace.round_seconds)
