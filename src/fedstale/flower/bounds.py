"""How much one reply may do: its length against what is usual among the other clients.

A reply whose update is more than `ratio` times as long as the median of the others' is shortened to that. The median is
over what every other client sent last, so that one that comes alone is bounded too, and needs three of them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

_ENOUGH = 3
"""Others from which on their median says what is usual."""
_MANY = 100
"""Clients from which on one more or less does not matter to the median: it is taken once for all."""


class LengthBound:
    """The lengths that clients sent last, and by how much a new one is to be shortened.

    Parameters
    ----------
    least
        What is usual at least, where others are known: a length of whole numbers that change is not below 1.
    """

    def __init__(self, least: float = 0.0) -> None:
        self.last: dict[int, float] = {}
        """The lengths by client, as they were counted."""
        self._least = least

    def factors(self, lengths: Mapping[int, float], ratio: float | None) -> dict[int, float]:
        """Return the factor ≤ 1 for each client of a round, and remember what is left of the lengths."""
        everybody = {**self.last, **lengths}
        found: dict[int, float] = {}
        many = float(np.median([*everybody.values()])) if len(everybody) > _MANY else None
        for client, length in lengths.items():
            if many is None:
                others = [other for who, other in everybody.items() if who != client]
                usual = max(float(np.median(others)), self._least) if len(others) >= _ENOUGH else 0.0
            else:
                usual = max(many, self._least)
            shorten = ratio is not None and usual > 0.0 and length > ratio * usual
            found[client] = ratio * usual / length if shorten and ratio is not None else 1.0
        self.last = {**everybody, **{client: length * found[client] for client, length in lengths.items()}}
        return found

    def forget(self, client: int) -> None:
        """Lose a client."""
        self.last.pop(client, None)
