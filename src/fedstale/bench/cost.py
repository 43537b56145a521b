"""How long a benchmark takes: a few rounds of each problem are timed, and the runs counted.

CPU seconds on one core, timed with all clients present, so that it is known how many trained. Rates that have to be
widened are not known beforehand: one more than there are is counted.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from ..checks import InvalidInput
from ..simulation.build import make_participation
from ..simulation.methods import EVERYBODY, PLAIN, Method
from ..sweeps import run_batch
from ..sweeps.batches import plan
from .suite import BenchSetting, Seeds

_SHORT, _LONG, _LONG_IF_SLOW = 1, 5, 2
"""Rounds that are timed; of a problem whose rounds take seconds, fewer."""
_SLOW = 1.0
"""CPU seconds of a short run from which on its rounds are slow."""
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


def cost(setting: BenchSetting, methods: Sequence[Method], seeds: Seeds) -> _Cost:
    """Estimate a setting with these seeds."""
    rates = len(setting.learned.rates) + 1
    count, seconds = 0, 0.0
    for method in methods:
        tried = rates * (len(seeds.choosing) + (len(seeds.yardstick) if method.everybody else 0))
        visits = _visits(setting, method)
        lockstep = plan([setting.settings(method, 0.1, 0)])[0].lockstep
        for times, (start, per_client) in zip(
            (_NOISE, tried + len(seeds.judging) - 1), _timed(setting, lockstep), strict=True
        ):
            seconds += times * (start + per_client * visits)
        count += tried + len(seeds.judging)
    return _Cost(count, seconds)


def _visits(setting: BenchSetting, method: Method = PLAIN) -> float:
    """How many clients train in a run of a method, in all rounds together."""
    try:
        p = make_participation(setting.settings(method, 0.1, 0)).probabilities()
    except InvalidInput:  # its log is not here
        return float(setting.rounds)
    return setting.rounds * float(np.sum(p))


def _timed(setting: BenchSetting, together: bool) -> tuple[tuple[float, float], tuple[float, float]]:
    """Seconds of a run to start and for each client that trains: alone, and for one of several (in lock-step)."""
    alone = _line(setting, 1, lockstep=False)
    return alone, _line(setting, _TOGETHER, lockstep=True) if together else alone


@cache
def _line(setting: BenchSetting, runs: int, *, lockstep: bool) -> tuple[float, float]:
    def timed(rounds: int) -> float:
        configs = [
            setting.settings(EVERYBODY, 1e-3 * (1 + k), 0).record() | {"rounds": rounds, "evaluate_every": rounds}
            for k in range(runs)
        ]
        began = time.process_time()
        run_batch(configs, lockstep)
        return (time.process_time() - began) / runs

    timed(_SHORT)  # loads the data and warms up
    short = timed(_SHORT)
    long = _LONG if short * runs < _SLOW else _LONG_IF_SLOW
    per_round = max(0.0, timed(long) - short) / (long - _SHORT)
    return max(0.0, short - _SHORT * per_round), per_round / setting.learned.clients
