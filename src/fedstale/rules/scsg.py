"""SCSG over clients: SVRG whose anchors need only a large batch of clients, and epochs of random length.

Lei, Ju, Chen & Jordan, Non-convex finite-sum optimization via SCSG methods, NIPS 2017.

    anchor:    w̃ = w_t,  g̃ = mean of Δ_i(w̃) over the first ⌈share · N⌉ clients that come,  Δ = g̃
    between:   as SVRG, for a geometrically distributed number of rounds with mean `period`
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..checks import positive_int, probability
from ..randomness import generator
from .svrg import SVRG


@dataclass(frozen=True, kw_only=True)
class SCSG(SVRG):
    """SVRG with cheaper anchors.

    Parameters
    ----------
    period
        Mean number of rounds between two anchors.
    share
        The share of the clients that an anchor needs.
    seed
        Decides the lengths of the epochs.
    """

    share: float = 0.75
    seed: int = 0

    name: ClassVar[str] = "scsg"

    def __post_init__(self) -> None:
        super().__post_init__()
        probability("share", self.share)
        positive_int("seed", self.seed, 0)

    @property
    def required(self) -> float:
        """The share."""
        return self.share

    def length(self, round: int) -> int:
        """Geometric on 0, 1, 2, … with mean `period`."""
        return int(generator(self.seed, "scsg epoch", round).geometric(1.0 / (1.0 + self.period))) - 1
