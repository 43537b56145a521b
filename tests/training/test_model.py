"""The flat vector, the rewritten model, the blocked layout."""

from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn

from fedstale.checks import InvalidInput
from fedstale.training import flatten, unflatten
from fedstale.training.blocked import blocked, can_run_blocked
from fedstale.training.layout import FlatLayout, read_buffers, write_buffers
from fedstale.training.prepare import prepare

from .problems import MODELS, cnn, mlp


@pytest.mark.parametrize("model", MODELS)
def test_flatten_and_unflatten_are_inverse(model: str) -> None:
    first, second = MODELS[model](), MODELS[model]()
    vector = flatten(first)
    assert vector.shape == (sum(p.numel() for p in first.parameters()),)
    unflatten(second, vector)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
    vector += 1.0
    assert not np.array_equal(vector, flatten(second))


def test_the_vector_does_not_depend_on_the_memory_format() -> None:
    module = cnn()
    vector = flatten(module)
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    assert np.array_equal(flatten(module), vector)


def test_views_of_stacked_vectors() -> None:
    layout = FlatLayout.of(mlp())
    stack = torch.randn(3, layout.num_params)
    views = layout.views(stack)
    assert views[0].shape == (3, 16, 36)
    views[1][2] = 5.0
    assert (stack[2, 16 * 36 : 16 * 36 + 16] == 5.0).all()


def gradients(module: nn.Module, forward: object, x: torch.Tensor, weights: torch.Tensor) -> list[torch.Tensor]:
    assert callable(forward)
    return list(torch.autograd.grad((forward(x) * weights).sum(), list(module.parameters())))


@pytest.mark.parametrize("channels_last", [False, True])
def test_pooling_before_relu_changes_no_bits(channels_last: bool) -> None:
    torch.manual_seed(0)
    module = cnn()
    x, weights = torch.randn(9, 1, 6, 6), torch.randn(9, 4)
    x[x < 0.3] = 0.0  # ties, whole windows of them
    if channels_last:
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    ready = prepare(module, channels_last=channels_last, device=torch.device("cpu"))
    assert isinstance(ready, nn.Sequential)
    assert [type(layer) for layer in ready.children()][:3] == [nn.Conv2d, nn.MaxPool2d, nn.ReLU]
    assert torch.equal(module(x), ready(x))
    for a, b in zip(gradients(module, module, x, weights), gradients(ready, ready, x, weights), strict=True):
        assert torch.equal(a, b)


def test_blocks_and_channels_last_agree_with_plain_torch() -> None:
    torch.manual_seed(0)
    module = cnn()
    x, weights = torch.randn(9, 1, 6, 6), torch.randn(9, 4)
    x[x < 0.3] = 0.0
    expected = gradients(module, module, x, weights)
    inside = blocked(module)
    assert inside is not None
    last = prepare(module, channels_last=True, device=torch.device("cpu"))
    others = [gradients(module, inside, x, weights), gradients(last, last, x, weights)]
    for other in others:
        for a, b in zip(expected, other, strict=True):
            assert torch.allclose(a, b, rtol=1e-5, atol=1e-5)


def test_blocks_are_for_leading_convolutions_only() -> None:
    assert can_run_blocked(cnn(), torch.randn(2, 1, 6, 6))
    assert blocked(mlp()) is None
    assert blocked(nn.Sequential(nn.Conv2d(1, 2, 3, padding="same"), nn.Flatten())) is None
    assert blocked(nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular"))) is None
    dilated = blocked(nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2, dilation=2), nn.Flatten()))
    assert dilated is not None
    assert dilated(torch.randn(2, 1, 9, 9)).shape == (2, 2 * 3 * 3)


def test_names_and_hooks_survive_preparation() -> None:
    layers = OrderedDict(conv=nn.Conv2d(1, 2, 3), act=nn.ReLU(), pool=nn.MaxPool2d(2), out=nn.Conv2d(2, 2, 1))
    named = nn.Sequential(layers)
    ready = prepare(named, channels_last=False, device=torch.device("cpu"))
    assert [name for name, _ in ready.named_parameters()] == [name for name, _ in named.named_parameters()]
    assert type(ready.act) is nn.MaxPool2d
    relu = nn.ReLU()
    relu.register_forward_hook(lambda *_: None)
    hooked = nn.Sequential(OrderedDict(act=relu, pool=nn.MaxPool2d(2)))
    assert type(prepare(hooked, channels_last=False, device=torch.device("cpu")).act) is nn.ReLU


def test_running_statistics_are_no_part_of_the_vector() -> None:
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    assert FlatLayout.of(module).num_params == 20 + 4
    found = read_buffers(module)
    assert set(found) == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    found["1.running_mean"] = np.array([3.0, 4.0], dtype=np.float32)
    found["1.num_batches_tracked"] = np.array(7)
    write_buffers(module, found)
    assert module.state_dict()["1.running_mean"].tolist() == [3.0, 4.0]
    assert int(module.state_dict()["1.num_batches_tracked"]) == 7


def test_other_unsuitable_models_are_refused() -> None:
    with pytest.raises(InvalidInput, match="no trainable parameters"):
        FlatLayout.of(nn.Sequential(nn.Flatten()))
    with pytest.raises(InvalidInput, match="float64"):
        FlatLayout.of(nn.Linear(2, 2).double())
    for lazy in (nn.LazyLinear(3), nn.Sequential(nn.Linear(2, 2), nn.LazyBatchNorm1d(affine=False))):
        with pytest.raises(InvalidInput, match="has no shape before a first batch: give the layer its input size"):
            FlatLayout.of(lazy)
    with pytest.raises(InvalidInput, match=r"vector = 'array of shape \(3,\)'"):
        unflatten(nn.Linear(2, 2), np.zeros(3))
