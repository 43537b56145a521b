"""Who trains whom: everybody once, nobody idle while others have work, whatever the sizes and the speeds."""

from __future__ import annotations

import numpy as np
import pytest

from fedstale.training.schedule import Queues, WorkerSpeeds, homes, pieces, plan


@pytest.mark.parametrize("seed", range(20))
def test_everybody_once_and_balanced(seed: int) -> None:
    rng = np.random.default_rng(seed)
    workers, clients = int(rng.integers(1, 7)), int(rng.integers(0, 60))
    work, speeds = rng.integers(1, 50, clients).astype(float), rng.uniform(0.2, 2.0, workers)
    home = rng.integers(workers, size=clients)
    shares = plan(work, home, speeds)
    assert sorted(position for share in shares for position in share) == list(range(clients))
    done = [work[share].sum() / speed for share, speed in zip(shares, speeds, strict=True)]
    best = work.sum() / speeds.sum()
    longest = 0.0 if not clients else 2 * work.max() / speeds.min()
    assert max(done) <= best + longest
    for share in shares:
        cut = pieces(share, work, 4)
        assert [position for piece in cut for position in piece] == share
        assert len(cut) <= 4
        assert all(cut)


def test_clients_stay_at_home_where_that_costs_nothing() -> None:
    home = np.repeat([0, 1, 2], 4)
    shares = plan(np.ones(12), home, np.ones(3))
    assert [set(home[share].tolist()) for share in shares] == [{0}, {1}, {2}]


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_homes_have_about_as_many_samples(workers: int) -> None:
    sizes = np.random.default_rng(0).integers(1, 30, 400)
    home = homes(sizes, workers)
    assert (np.diff(home) >= 0).all()
    assert home.max() == workers - 1
    held = np.bincount(home, sizes)
    assert held.max() - held.min() <= 2 * sizes.max()


@pytest.mark.parametrize("seed", range(10))
def test_a_worker_that_is_done_takes_from_the_others(seed: int) -> None:
    rng = np.random.default_rng(seed)
    work = rng.integers(1, 9, 30).astype(float)
    shares = plan(work, rng.integers(3, size=30), np.ones(3))
    queues = Queues([pieces(share, work, 4) for share in shares], work)
    taken: list[int] = []
    while queues:
        piece = queues.take(0, np.ones(3))  # worker 0 alone does everything
        assert piece is not None
        if rng.random() < 0.3:
            queues.put_back(0, piece)
        else:
            taken += piece
    assert sorted(taken) == list(range(30))
    assert queues.take(1, np.ones(3)) is None


def test_speeds_are_measured_and_forgotten() -> None:
    speeds = WorkerSpeeds(3)
    assert speeds.values.tolist() == [1.0, 1.0, 1.0]
    speeds.observe(1, 10.0, 2.0)
    assert speeds.values.tolist() == [5.0, 5.0, 5.0]
    speeds.observe(0, 10.0, 10.0)
    assert speeds.values.tolist() == [1.0, 5.0, 3.0]
    speeds.observe(1, 1.0, 1.0)
    assert speeds.values[1] == 3.0
    speeds.forget(1)
    assert speeds.values.tolist() == [1.0, 1.0, 1.0]
    speeds.observe(0, 0.0, 1.0)
    assert speeds.values[0] == 1.0
