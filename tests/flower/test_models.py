"""Any model: layers of any shape and dtype; buffers beside the rule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from hypothesis import given
from hypothesis import strategies as st

import fedstale as fs
from fedstale.flower import FedStale, UnbiasedFedAvg
from fedstale.flower.layout import Layout, decode, read_arrays

from .grid import MemoryGrid, Model, Trainer, arrays, first_model, record, trainers

QUICK: Any = {"fraction_evaluate": 0.0, "max_wait": 0.0}


def batch_norm() -> Model:
    return {
        "weight": np.linspace(-1, 1, 6, dtype="f4").reshape(2, 3),
        "bn.weight": np.ones(3, "f4"),
        "bn.running_mean": np.zeros(3, "f4"),
        "bn.running_var": np.full(3, 0.01, "f4"),
        "bn.num_batches_tracked": np.asarray(7, "i8"),
        "mask": np.array([True, False, True]),
        "empty": np.empty((0, 4), "f4"),
    }


def test_counters_are_averaged_and_keep_their_dtype() -> None:
    result = FedStale(**QUICK).start(MemoryGrid(trainers([0, 1, 5])), record(batch_norm()), num_rounds=1)
    found = arrays(result.arrays)
    assert {n: (a.shape, a.dtype) for n, a in found.items()} == {n: (a.shape, a.dtype) for n, a in batch_norm().items()}
    # The clients add 1, 2 and 6 to the counter: 7 + 3.
    assert found["bn.num_batches_tracked"] == 10


def test_buffers_stay_when_nobody_answers() -> None:
    strategy = FedStale(**QUICK)
    grid = MemoryGrid(trainers([0, 1]))
    first = strategy.start(grid, record(batch_norm()), num_rounds=1)
    grid.online = set()
    second = strategy.start(grid, first.arrays, num_rounds=1)
    for name in ("bn.num_batches_tracked", "bn.running_var", "mask"):
        np.testing.assert_array_equal(arrays(first.arrays)[name], arrays(second.arrays)[name])


def test_a_running_variance_never_overshoots() -> None:
    """With p = 0.05 the rule takes twenty times the client's step: a variance that went through it is negative."""
    options: Any = {**QUICK, "probabilities": 0.05, "num_clients": 1, "min_available_nodes": 0, "min_train_nodes": 0}

    class Shrinking(Trainer):
        def model(self, received: Model, server_round: int) -> Model:
            return {n: (a * 0.9).astype(a.dtype) if a.dtype.kind == "f" else a for n, a in received.items()}

    grid = MemoryGrid({1: Shrinking(0)})
    beside = UnbiasedFedAvg(**options).start(grid, record(batch_norm()), num_rounds=1)
    through = UnbiasedFedAvg(**options, averaged_buffers=()).start(grid, record(batch_norm()), num_rounds=1)
    assert (arrays(beside.arrays)["bn.running_var"] > 0).all()
    assert (arrays(through.arrays)["bn.running_var"] < 0).all()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_dtypes_survive_and_differences_are_taken_from_what_was_sent(dtype: str) -> None:
    """A float16 model is sent rounded; a client that returns what it got has not moved anything."""

    class Idle(Trainer):
        def model(self, received: Model, server_round: int) -> Model:
            return received

    start = {"a": np.array([0.1, 1 / 3, 1000.1], dtype=dtype), "b": np.asarray(1e-3, dtype)}
    strategy = FedStale(**QUICK)
    result = strategy.start(MemoryGrid({1: Idle(0), 2: Idle(1)}), record(start), num_rounds=3)
    for name, array in arrays(result.arrays).items():
        assert array.dtype == dtype
        np.testing.assert_array_equal(array, start[name])
    assert strategy.aggregator is not None
    assert not strategy.aggregator.state.memory.rows([0, 1]).any()


def test_small_steps_of_a_float16_model_are_not_lost() -> None:
    """Half the clients move by one float16 step: the server's own copy keeps the half steps."""

    class Step(Trainer):
        def model(self, received: Model, server_round: int) -> Model:
            return {n: np.nextafter(a, a + self.client, dtype=a.dtype) for n, a in received.items()}

    grid = MemoryGrid({1: Step(0), 2: Step(1)})
    result = UnbiasedFedAvg(**QUICK).start(grid, record({"a": np.ones(3, "f2")}), num_rounds=4)
    np.testing.assert_array_equal(arrays(result.arrays)["a"], np.full(3, 1 + 2 * 2**-10, "f2"))


def test_a_model_of_mixed_floats_is_summed_in_the_widest() -> None:
    layout = Layout.of({"a": np.zeros(2, "f2"), "b": np.zeros(3, "f8"), "c": np.zeros(1, "f4")})
    assert layout.dtype == np.float64
    assert layout.num_params == 6


@pytest.mark.parametrize("bad", [{"a": np.zeros(2, "c8")}, {"a": np.array(["x"])}, {"a": np.zeros(3, "i4")}, {}])
def test_models_that_cannot_be_trained_are_refused(bad: Model) -> None:
    with pytest.raises(fs.InvalidInput, match=r"array a|initial_arrays"):
        FedStale(**QUICK).start(MemoryGrid(trainers([0, 1])), record(bad), num_rounds=1)


def test_a_first_model_with_nan_is_refused() -> None:
    with pytest.raises(fs.InvalidInput, match="must be finite"):
        FedStale(**QUICK).start(MemoryGrid(trainers([0, 1])), record({"a": np.array([np.nan])}), num_rounds=1)


shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
dtypes = st.sampled_from(["f2", "f4", "f8", ">f4", "i8", "u1", "?"])


@given(st.lists(st.tuples(shapes, dtypes, st.booleans()), min_size=1, max_size=5), st.integers(0, 99))
def test_splitting_and_joining_gives_the_model_back(layers: list[tuple[tuple[int, ...], str, bool]], seed: int) -> None:
    chance = np.random.default_rng(seed)
    model = {"w": np.ones(1, "f4")}
    for k, (shape, dtype, fortran) in enumerate(layers):
        values = (10 * chance.standard_normal(shape)).astype(dtype)
        model[f"layer{k}"] = np.asarray(values, order="F" if fortran else "C")
    sent = record(model)
    for name, array in sent.items():
        np.testing.assert_array_equal(decode(array), array.numpy())
        assert decode(array).dtype == model[name].dtype
    layout = Layout.of(read_arrays(sent))
    again = Layout.from_description(layout.describe())
    assert again == layout
    for name, joined in arrays(layout.join(*layout.split(read_arrays(sent)))).items():
        np.testing.assert_array_equal(joined, model[name])


def test_a_torch_model_goes_round() -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    start = ArrayRecord(model.state_dict())
    result = FedStale(**QUICK).start(MemoryGrid(trainers([0, 1, 2])), start, num_rounds=2)
    model.load_state_dict(result.arrays.to_torch_state_dict())
    assert model[1].num_batches_tracked == 4  # 0 + (1 + 2 + 3)/3 twice


def test_arrays_are_never_unpickled() -> None:
    header = first_model()["conv.bias"].astype(object)
    with pytest.raises(ValueError, match="Object arrays"):
        Array(header)
    import io

    buffer = io.BytesIO()
    np.save(buffer, header, allow_pickle=True)
    with pytest.raises(fs.InvalidInput, match="never unpickled"):
        decode(Array("object", (4,), "numpy.ndarray", buffer.getvalue()))
