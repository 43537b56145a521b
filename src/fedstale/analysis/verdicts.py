"""Claims, judged: held, not held or not decided, by their evidence and by how many there are in one table.

No difference is called decided while the best learning rate of a method it is made of is at the edge of its grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .evidence import LEVEL, NONE, Evidence, holm

HELD, NOT_HELD, NOT_DECIDED = "held", "not held", "not decided"
AT_EDGE = "not decided: best rate at the edge of its grid"
HEADINGS = ("claim", "measured here", "p", "p (Holm)", "verdict")
EXPLANATION = (
    "p: two-sided, by flipping the signs of whole seeds; S seeds give none below 2/2^S (0.25 for 3, 0.002 for 10). "
    f"p (Holm): adjusted for the number of claims in this table; {LEVEL:g} or less decides."
)


@dataclass(frozen=True)
class Finding:
    """What was measured of one claim.

    Attributes
    ----------
    claim, measured
        What is said, and what was seen.
    evidence
        For and against.
    edges
        How many of the methods and settings that it rests on have their best rate at the edge of its grid.
    """

    claim: str
    measured: str
    evidence: Evidence = NONE
    edges: int = 0


@dataclass(frozen=True)
class Claim:
    """One row of the table.

    Attributes
    ----------
    claim, measured, verdict
        What is said, what was seen, and what follows.
    p, adjusted
        Two-sided p-value, and the same by Holm's method; NaN where runs are missing.
    """

    claim: str
    measured: str
    p: float
    adjusted: float
    verdict: str

    def cells(self) -> tuple[str, ...]:
        """The row as `HEADINGS` has it."""
        return self.claim, self.measured, _p(self.p), _p(self.adjusted), self.verdict


def judged(findings: Sequence[Finding]) -> list[Claim]:
    """Judge the claims of one table, with its number of claims in mind."""
    p = [finding.evidence.p for finding in findings]
    rows = []
    for finding, own, adjusted in zip(findings, p, holm(p), strict=True):
        verdict = NOT_DECIDED
        if finding.edges:
            verdict = AT_EDGE
        elif adjusted <= LEVEL:
            verdict = HELD if finding.evidence.in_favour < finding.evidence.against else NOT_HELD
        edges = f"; best rate at the edge of its grid in {finding.edges} cells" if finding.edges else ""
        rows.append(Claim(finding.claim, finding.measured + edges, own, adjusted, verdict))
    return rows


def markdown(rows: Sequence[Claim]) -> str:
    """The table."""
    lines = [f"| {' | '.join(HEADINGS)} |", "|---|---|---|---|---|"]
    lines += [f"| {' | '.join(row.cells()[:-1])} | **{row.verdict}** |" for row in rows]
    return "\n".join([*lines, "", EXPLANATION]) + "\n"


def _p(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.2g}"
