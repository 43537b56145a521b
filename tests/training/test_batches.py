import numpy as np
import pytest

from fedstale.checks import InvalidInput
from fedstale.training import Batches, LocalTraining, draw
from fedstale.training.local import steps_of

OFFSETS = np.array([0, 40, 63, 94, 101])
EVERYONE = np.arange(4)


def same(a: Batches, b: Batches) -> bool:
    return np.array_equal(a.rows, b.rows) and np.array_equal(a.steps, b.steps)


@pytest.mark.parametrize(
    "training",
    [
        LocalTraining(lr=1.0, batch_size=6),
        LocalTraining(lr=1.0, batch_size=6, replacement=False),
        LocalTraining(lr=1.0, batch_size=6, epochs=2),
    ],
)
def test_batches_are_a_function_of_seed_round_and_client(training: LocalTraining) -> None:
    together = draw(training, OFFSETS, EVERYONE, 3, 11)
    assert same(together, draw(training, OFFSETS, EVERYONE, 3, 11))
    # Neither the order of the clients nor who else takes part matters.
    backwards = draw(training, OFFSETS, EVERYONE[::-1].copy(), 3, 11)
    assert np.array_equal(backwards.rows[::-1], together.rows)
    for client in range(4):
        alone = draw(training, OFFSETS, np.array([client]), 3, 11)
        steps = int(alone.steps[0])
        assert steps == together.steps[client]
        width = alone.rows.shape[2]
        assert np.array_equal(alone.rows[0, :steps], together.rows[client, :steps, :width])
    assert not same(together, draw(training, OFFSETS, EVERYONE, 4, 11))
    assert not same(together, draw(training, OFFSETS, EVERYONE, 3, 12))


def test_rows_belong_to_the_client() -> None:
    rows = draw(LocalTraining(lr=1.0, batch_size=50), OFFSETS, EVERYONE, 0, 0).rows
    for client in range(4):
        assert rows[client].min() >= OFFSETS[client]
        assert rows[client].max() < OFFSETS[client + 1]


def test_with_replacement_draws_are_independent_and_uniform() -> None:
    rows = draw(LocalTraining(lr=1.0, steps=200, batch_size=50), OFFSETS, np.array([3]), 0, 0).rows[0]
    counts = np.bincount(rows.ravel() - OFFSETS[3], minlength=7)
    assert abs(counts / rows.size - 1 / 7).max() < 0.02
    assert any(len(set(batch)) < 7 for batch in rows[:, :7].tolist())


def test_without_replacement_a_batch_has_no_sample_twice() -> None:
    training = LocalTraining(lr=1.0, steps=300, batch_size=5, replacement=False)
    rows = draw(training, OFFSETS, np.array([3]), 0, 0).rows[0]
    assert all(len(set(batch)) == 5 for batch in rows.tolist())
    # Batches of different steps are independent: not two passes over the same order.
    assert len({tuple(sorted(batch)) for batch in rows.tolist()}) > 10
    counts = np.bincount(rows.ravel() - OFFSETS[3], minlength=7)
    assert abs(counts / 300 - 5 / 7).max() < 0.1


def test_an_epoch_sees_every_sample_once() -> None:
    batches = draw(LocalTraining(lr=1.0, epochs=3, batch_size=16), OFFSETS, EVERYONE, 5, 0)
    assert batches.sizes is not None
    assert batches.steps.tolist() == [9, 6, 6, 3]
    for client in range(4):
        size = int(OFFSETS[client + 1] - OFFSETS[client])
        per_epoch = batches.steps[client] // 3
        orders = []
        for epoch in range(3):
            steps = range(epoch * per_epoch, (epoch + 1) * per_epoch)
            seen = np.concatenate([batches.rows[client, k, : batches.sizes[client, k]] for k in steps])
            assert sorted(seen) == list(range(OFFSETS[client], OFFSETS[client + 1]))
            orders.append(seen.tolist())
            assert batches.sizes[client, steps[-1]] == size - 16 * (per_epoch - 1)
        assert orders[0] != orders[1]


def test_epochs_that_divide_have_no_empty_places() -> None:
    batches = draw(LocalTraining(lr=1.0, epochs=1, batch_size=10), np.array([0, 40, 80]), np.arange(2), 0, 0)
    assert batches.sizes is None
    assert batches.rows.shape == (2, 4, 10)


def test_a_batch_larger_than_the_data_without_replacement_is_named() -> None:
    training = LocalTraining(lr=1.0, batch_size=8, replacement=False)
    with pytest.raises(InvalidInput, match="batch_size = 8: client 3 has 7 training samples"):
        draw(training, OFFSETS, EVERYONE, 0, 0)
    draw(training, OFFSETS, np.arange(3), 0, 0)


def test_a_client_without_samples_is_named() -> None:
    with pytest.raises(InvalidInput, match="client 1 has 0 training samples"):
        draw(LocalTraining(lr=1.0), np.array([0, 3, 3]), np.arange(2), 0, 0)


def test_nobody_takes_part() -> None:
    nobody = np.empty(0, dtype=np.int64)
    for training in (LocalTraining(lr=1.0), LocalTraining(lr=1.0, epochs=2)):
        assert len(draw(training, OFFSETS, nobody, 0, 0).rows) == 0


@pytest.mark.parametrize("clients", [[0, 1, 2, 3], [2], [1, 3], []])
@pytest.mark.parametrize("batch_size", [1, 4, 7, 100])
@pytest.mark.parametrize("length", [{"epochs": 1}, {"epochs": 3}, {"steps": 2}])
def test_steps_are_known_without_drawing(clients: list[int], batch_size: int, length: dict[str, int]) -> None:
    sizes = np.array([3, 40, 8, 7])
    offsets, ids = np.concatenate([[0], np.cumsum(sizes)]), np.array(clients, dtype=np.int64)
    training = LocalTraining(lr=0.1, batch_size=batch_size, **length)  # type: ignore[arg-type]
    drawn = draw(training, offsets, ids, 0, 0).steps
    np.testing.assert_array_equal(steps_of(training, sizes[ids]), drawn)
