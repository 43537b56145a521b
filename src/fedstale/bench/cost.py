"""How long a benchmark takes: a few rounds of each problem are timed, and the runs counted.

CPU seconds on one core. Rates that have to be widened are not known beforehand: one more than there are is counted.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from ..checks import InvalidInput
from ..simulation.build import make_participation
from ..simulation.methods import PLAIN, Method
from ..sweeps import run_batch
from ..sweeps.lockstep import eligible
from .suite import BenchSetting

_SHORT, _LONG = 3, 9
_TOGETHER = 8
_NOISE = 3
"""Runs that the run with measured noise costs."""


@dataclass(frozen=True)
class _Cost:
    """What a setting costs.

    Attributes
    ----------
    runs
        How many.
    seconds
        CPU seconds of all of them.
    """

    runs: int
    seconds: float


def cost(setting: BenchSetting, methods: Sequence[Method], choosing: int, judging: int) -> _Cost:
    """Estimate a setting with so many seeds for choosing and for judging."""
    tried = choosing * (len(setting.learned.rates) + 1)
    counted = [0, 0]  # alone, in lock-step
    for method in methods:
        together = eligible(setting.settings(method, 0.1, 0))
        counted[together] += tried + judging - 1
        counted[0] += _NOISE
    seconds = sum(
        count * (start + per_client * _visits(setting))
        for count, (start, per_client) in zip(counted, _timed(setting), strict=True)
        if count
    )
    return _Cost(len(methods) * (tried + judging), seconds)


def _visits(setting: BenchSetting) -> float:
    """How many clients train in a run, in all rounds together."""
    try:
        p = make_participation(setting.settings(PLAIN, 0.1, 0)).probabilities()
    except InvalidInput:  # its log is not here
        return float(setting.rounds)
    return setting.rounds * float(np.sum(p))


def _timed(setting: BenchSetting) -> tuple[tuple[float, float], tuple[float, float]]:
    """Seconds of a run to start and for each client that trains: alone, and for one of several in lock-step."""
    alone = _line(setting, 1, lockstep=False)
    together = eligible(setting.settings(PLAIN, 0.1, 0))
    return alone, _line(setting, _TOGETHER, lockstep=True) if together else alone


@cache
def _line(setting: BenchSetting, runs: int, *, lockstep: bool) -> tuple[float, float]:
    times = []
    for rounds in (_SHORT, _SHORT, _LONG):  # the first loads the data
        configs = [
            setting.settings(PLAIN, 0.01 * (1 + k), 0).record() | {"rounds": rounds, "evaluate_every": rounds}
            for k in range(runs)
        ]
        began = time.process_time()
        run_batch(configs, lockstep)
        times.append((time.process_time() - began) / runs)
    clients = _visits(setting) / setting.rounds
    slope = max(0.0, times[2] - times[1]) / ((_LONG - _SHORT) * max(clients, 1e-9))
    return times[1], slope
