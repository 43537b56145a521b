"""Randomness as a function of (seed, purpose, round, client), never of the order of calls.

Every engine, any number of workers and a resumed run therefore draw the same participants and the same
batches: `generator(seed, "participation", 700)` gives the stream of round 700 without rounds 0 … 699.
"""

from __future__ import annotations

import zlib

import numpy as np

from .checks import fail, positive_int

__all__ = ["generator"]


def generator(seed: int, purpose: str, *coordinates: int) -> np.random.Generator:
    """Return the generator that belongs to one point of a run.

    Parameters
    ----------
    seed
        The run's seed, a non-negative integer.
    purpose
        What the numbers are for, such as "participation" or "batches": purposes never share a stream.
    *coordinates
        Where in the run: usually the round, then the client. Non-negative integers.
    """
    positive_int("seed", seed, 0)
    for value in coordinates:
        if value < 0:
            raise fail("coordinates", coordinates, "rounds and clients are non-negative integers")
    words = (seed, zlib.crc32(purpose.encode()), len(coordinates), *coordinates)
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(words)))
