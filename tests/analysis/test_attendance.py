"""Who came when, in bins."""

from __future__ import annotations

import numpy as np

from fedstale.analysis import raster
from fedstale.analysis.attendance import number_of_clients, visits


def test_raster_of_few_and_of_many() -> None:
    came = {t: np.array([t % 3]) for t in range(6)}
    small = raster(came, 3, rows=200, columns=500)
    assert not small.binned
    np.testing.assert_array_equal(small.share, np.tile(np.eye(3), 2))
    assert small.rounds.tolist() == [1, 2, 3, 4, 5, 6]
    many = {t: np.arange(0, 1000, 2) for t in range(1200)}
    large = raster(many, 1000, rows=200, columns=500)
    assert large.binned
    assert large.share.size <= 500 * 200
    np.testing.assert_allclose(large.share.mean(), 0.5, atol=0.05)
    assert large.share.max() <= 1.0


def test_rounds_that_were_not_recorded_do_not_count() -> None:
    found = raster({4: np.array([0]), 7: np.array([0, 1])}, 2, rows=10, columns=2)
    assert found.bin_rounds == 2
    assert found.rounds.tolist() == [5, 7]  # from 1
    np.testing.assert_array_equal(found.share, [[1, 1], [0, 1]])


def test_everybody_is_counted_once() -> None:
    came = {0: np.array([2, 0]), 3: np.empty(0, np.int64), 5: np.array([1])}
    clients, rounds = visits(came)
    assert clients.tolist() == [2, 0, 1]
    assert rounds.tolist() == [0, 0, 5]
    assert number_of_clients({}, came) == 3
    assert number_of_clients({"num_clients": 24}, came) == 24
    assert number_of_clients({"num_clients": 2}, came) == 3
