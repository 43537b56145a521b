"""What p_i is in a federation on Flower: given per client, one number for all, or estimated (spec §4).

p_i is the probability that client i contributes to a round: that it is connected, is asked, answers in time and
answers with something that can be used. Whom it asks is the server's own draw, whose probability it knows; the rest is
estimated from the rounds in which the client was asked, or would have been had it been there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..checks import Float, fail, number, probability, unknown
from ..federation import Ints
from ..participation import ESTIMATORS, Estimator, EstimatorState, KnownProbabilities, make_estimator

ProbabilitySpec = str | float | Mapping[Any, float] | Estimator


class Probabilities:
    """The p_i of the participants of a round.

    Parameters
    ----------
    spec
        "fedau" (default), "fedau-nocutoff", "beta", "forgetting", "daily", or any `fedstale.participation.Estimator`;
        one number for all; or a mapping from the client's identity to its known p_i.
    aliases
        Other names of clients, by identity.
    """

    def __init__(self, spec: ProbabilitySpec = "fedau", aliases: Mapping[str, str] | None = None) -> None:
        self._aliases = {} if aliases is None else aliases
        self.known: dict[str, float] | None = None
        self.estimator: Estimator | None = None
        if isinstance(spec, Mapping):
            self.known = {str(key): probability(f"probabilities[{key!r}]", value) for key, value in spec.items()}
        elif isinstance(spec, Estimator):
            if isinstance(spec, KnownProbabilities) and (callable(spec.p) or np.ndim(spec.p)):
                raise fail("probabilities", spec, "clients have no order here: give a mapping {identity: p}")
            self.estimator = spec
        elif isinstance(spec, str):
            if spec == "known":
                raise fail("probabilities", spec, "give the known values: a mapping {identity: p} or one number")
            if spec not in ESTIMATORS:
                raise unknown("probabilities", spec, [*ESTIMATORS, "a number", "a mapping {identity: p}"])
            self.estimator = make_estimator(spec)
        else:
            self.estimator = KnownProbabilities(number("probabilities", spec, 0.0, 1.0, open_low=True))

    def start(self, num_clients: int) -> EstimatorState | None:
        """Return what an estimator remembers before the first round."""
        return None if self.estimator is None else self.estimator.init(num_clients)

    def grow(self, state: EstimatorState | None, num_clients: int) -> None:
        """Let clients join."""
        if self.estimator is not None and state is not None:
            self.estimator.grow(state, num_clients)

    def forget(self, state: EstimatorState | None, clients: list[int]) -> None:
        """Let clients leave."""
        if self.estimator is not None and state is not None:
            self.estimator.forget(state, clients)

    def knows(self, identity: str) -> bool:
        """Whether this client's p_i is or will be known."""
        return self.known is None or self._key(identity) in self.known

    def values(self, state: EstimatorState | None, clients: Ints, identities: list[str], asked: float = 1.0) -> Float:
        """Return p_i of the participants, from past rounds only.

        What is estimated is whether a client is there and answers when it is asked; `asked` is the probability that
        one who is there is asked, which the server knows. What is given as known is p_i as a whole.
        """
        if self.known is not None:
            return np.array([self.known[self._key(identity)] for identity in identities])
        assert self.estimator is not None  # noqa: S101 - one of the two kinds
        assert state is not None  # noqa: S101
        estimated = self.estimator.probabilities(state, clients)
        return estimated if isinstance(self.estimator, KnownProbabilities) else asked * estimated

    def observe(self, state: EstimatorState | None, participants: Ints, skipped: Sequence[int] = ()) -> None:
        """Count a round: who was asked and did not contribute was absent, whatever the reason.

        It does not count for the clients in `skipped`, who were not asked.
        """
        if self.estimator is not None and state is not None:
            self.estimator.observe(state, participants, state.round, skipped)

    @property
    def same_for_all(self) -> float | None:
        """The one p that every client has, where it is given so."""
        known = self.estimator.p if isinstance(self.estimator, KnownProbabilities) else None
        return None if known is None or callable(known) else float(np.asarray(known))

    def _key(self, identity: str) -> str:
        """Users may write "client-id:7" or just 7, and the name under which a key was registered."""
        assert self.known is not None  # noqa: S101
        names = (identity, self._aliases.get(identity, ""), identity.partition(":")[2])
        return next((name for name in names if name in self.known), identity)
