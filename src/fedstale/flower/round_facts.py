"""What the server knows of a round before it looks at the replies, and what the round then did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from ..checks import Float
from ..federation import Ints
from .replies import ClientReply, LeftOut


@dataclass(frozen=True)
class AppliedRound:
    """What a round did: the participants' indices and p_i, their replies in that order, and who was left out."""

    clients: Ints
    probabilities: Float
    replies: list[ClientReply]
    left_out: list[LeftOut]
    staleness: Float
    """How many rounds ago the clients known before had contributed last."""
    examples_cut: int
    """How many claims to have very many examples were cut down."""
    shortened: int
    """How many replies were much longer than usual, and shortened."""


@dataclass(frozen=True)
class LateUpdate:
    """A late reply that may count: its round's index, and the model that it answers, shape (d,)."""

    reply: ClientReply
    round: int
    sent: NDArray[Any]


@dataclass(frozen=True)
class RoundSetting:
    """What the server knows of a round before it looks at the replies.

    Attributes
    ----------
    asked_share
        The probability that a connected node was asked.
    connected
        The clients that were there, asked or not, as far as they are known.
    not_asked
        The clients of whom it was not seen whether they would answer.
    never_asked
        How many nodes were there that nobody has asked yet: clients who are not known.
    at_least
        N, where it is known from elsewhere.
    most_connected
        How many nodes were there at once, at most: new node ids beyond that take the places of others. None: never.
    max_clients
        How many may become known.
    max_examples_ratio, max_norm_ratio
        How many times the median of the other clients a claimed number of examples and an update may be.
    halve_rows_every
        Rounds after which a row that was not renewed is halved, and the weight of its client's buffers.
    """

    asked_share: float = 1.0
    connected: Sequence[int] = ()
    not_asked: Sequence[int] = ()
    never_asked: int = 0
    at_least: int = 0
    most_connected: int | None = None
    max_clients: int | None = None
    max_examples_ratio: float | None = None
    max_norm_ratio: float | None = None
    halve_rows_every: int | None = None
