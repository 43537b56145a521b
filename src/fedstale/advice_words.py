"""The words of `advise`: why, and the answer."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from . import rules
from .analysis import Estimate
from .measured import MeasuredGain, Verdict


def size_text(size: float) -> str:
    """Bytes in words: 12 MB, 1.2 GB."""
    unit = next((unit for unit in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)) if size >= unit[1]), ("B", 1.0))
    return f"{size / unit[1]:.3g} {unit[0]}"


def quiet_reason(noise: float) -> str:
    """Why there is nothing to take away."""
    if noise == 0.0:
        return "every client always comes, and plain averaging is exact"
    return f"the noise of absence is only {noise:.2g} of a client's squared update"


def short_log_reason(least: float, most: float) -> str:
    """Why a log does not say whether there is anything to take away."""
    return (
        "the log is too short to say whether there is noise to take away: by the confidence limits of p it is "
        f"{least:.2g} to {most:.2g} of a client's squared update"
    )


def measured_reason(gain: MeasuredGain) -> str:
    """What the two rules ended with in a pilot."""
    both = gain.memory, gain.plain
    edges = [" (at the edge of those tried)" if one.at_edge else "" for one in both]
    named = [f'"{one.rule}" at rate {one.rate:.3g}{edge}' for one, edge in zip(both, edges, strict=True)]
    ends = [f"{name} {_end(one.objective)}" for name, one in zip(named, both, strict=True)]
    apart = ""
    if gain.gain.mean == 0.0:
        apart = ": no difference"
    elif not np.isnan(gain.gain.mean):
        size = Estimate(abs(gain.gain.mean), gain.gain.error)
        errors = "more than" if gain.gain.decided else "not more than"
        apart = f": {size:.3g} {'lower' if gain.gain.mean > 0.0 else 'higher'}, {errors} twice its error"
    return f"in the pilot {ends[0]}, {ends[1]}{apart}"


def _end(objective: Estimate) -> str:
    return f"{objective:.3g}" if objective.diverged else f"ends with an objective of {objective:.3g}"


def range_text(numbers: Iterable[float]) -> str:
    """The smallest and the largest of some numbers, or the one that there is."""
    values = sorted({round(number, 2) for number in numbers})
    return f"{values[0]:.2f}" if len(values) == 1 else f"{values[0]:.2f} to {values[-1]:.2f}"


def percent_text(least: float, most: float, limit: float) -> str:
    """Shares from the least to the most, or the one that there is; none is rounded to a limit that it is not."""
    low, high = (_percent(share, limit) for share in (least, most))
    return low if low == high else f"{low} to {high}"


def unbiased_sentence(verdict: Verdict, reason: str, rule: str, memory: str) -> str:
    """Put the answer about the unbiased rules into words."""
    if verdict == "keep":
        return (
            f'Keep stale updates: {reason}. Take rule "{rule}" with beta "auto"; the memory costs {memory}. The '
            f'default rule, "{rules.DEFAULT}", keeps the same memory and trades a little bias for less noise.'
        )
    if verdict == "do not bother":
        return (
            f'Do not bother to keep stale updates with an unbiased rule: {reason}. Of these rules take "{rule}", and '
            f'save {memory}. The default rule, "{rules.DEFAULT}", is biased and not in the table: a pilot compares it '
            "with U-FedAvg (--pilot TASK)."
        )
    return (
        f'Cannot tell whether stale updates are worth keeping: {reason}. Until then rule "{rule}" with beta "auto" is '
        f"safe (β goes to 0 where the memory misleads); it costs {memory}."
    )


def measured_sentence(verdict: Verdict, reason: str, gain: MeasuredGain, memory: str) -> str:
    """Put the answer of a pilot into words."""
    keeping, without = gain.memory.rule, gain.plain.rule
    if verdict == "keep":
        return f'Keep stale updates: {reason}. Take rule "{keeping}"; the memory costs {memory}.'
    if verdict == "do not bother":
        return f'Do not bother to keep stale updates: {reason}. Take rule "{without}", and save {memory}.'
    return (
        f"Cannot tell whether stale updates are worth keeping: {reason}. More rounds and seeds tell more (fedstale "
        f'compare). Until then "{keeping}" costs {memory}, "{without}" nothing.'
    )


def _percent(share: float, limit: float) -> str:
    texts = (f"{share:.{digits}%}" for digits in range(9) if f"{share:.{digits}%}" != f"{limit:.{digits}%}")
    return next(texts, f"{share:.0%}")
