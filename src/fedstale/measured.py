"""What a pilot measures for `advise`: how stale updates correlate with the next ones, and what a memory gains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .analysis import Estimate

Verdict = Literal["keep", "do not bother", "cannot tell"]


@dataclass(frozen=True)
class MeasuredCorrelation:
    """The correlation of stored updates with the next ones, as a pilot measured it.

    Attributes
    ----------
    correlation, error
        c and its standard error; NaN where it is from one run, which has none.
    alike
        κ, the mean cosine between the updates of two clients in a round; None where it was not measured.
    source
        Where it was measured, in words.
    """

    correlation: float
    error: float
    alike: float | None
    source: str


@dataclass(frozen=True)
class PilotedRule:
    """A rule in a pilot.

    Attributes
    ----------
    rule
        Its name.
    tried
        The objective by rate, on the seeds for choosing; NaN where one of them diverged.
    rate
        The best of them.
    objective
        At that rate, on the seeds for judging.
    """

    rule: str
    tried: dict[float, float]
    rate: float
    objective: Estimate

    @property
    def at_edge(self) -> bool:
        """Whether the best rate is the smallest or the largest that was tried: it is not tuned then."""
        return len(self.tried) > 1 and self.rate in (min(self.tried), max(self.tried))


@dataclass(frozen=True)
class MeasuredGain:
    """What a memory was worth in a pilot: the default rule against U-FedAvg, on the same participants and batches.

    Attributes
    ----------
    plain, memory
        U-FedAvg and the default rule, each at its own best rate.
    gain
        How much lower the objective of the default rule is, over the seeds for judging.
    source
        What was run, in words.
    """

    plain: PilotedRule
    memory: PilotedRule
    gain: Estimate
    source: str

    @property
    def verdict(self) -> Verdict:
        """Whether the default rule is ahead beyond the error; a rule that diverged is behind one that did not."""
        lost = bool(self.plain.objective.diverged), bool(self.memory.objective.diverged)
        if lost[0] != lost[1]:
            return "keep" if lost[0] else "do not bother"
        if not self.gain.decided or self.plain.at_edge or self.memory.at_edge:
            return "cannot tell"
        return "keep" if self.gain.mean > 0.0 else "do not bother"
