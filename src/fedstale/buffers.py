"""What a model keeps beside its parameters, such as the running means of batch normalisation: averaged, not trained.

A rule must not touch it: an update that is weighted by 1/p_i may overshoot, and a variance below zero is NaN. So the
server averages over the clients what each of them sent last, those who are absent included; weights are the α_i.
`ClientBuffers` keeps it in the state of a simulation; the Flower strategies keep what devices send.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .checks import Float, InvalidInput
from .federation import Ints
from .state import State

Buffers = dict[str, NDArray[Any]]
_GLOBAL, _CLIENT, _SENT = "buffer/", "client_buffer/", "buffers_sent"


def average(sent: Sequence[Mapping[str, NDArray[Any]]], weights: Float, like: Mapping[str, NDArray[Any]]) -> Buffers:
    """Return the weighted mean of buffers, in each buffer's dtype; integers are rounded, booleans go by majority.

    Parameters
    ----------
    sent
        The buffers of each client, by name; some may lack some.
    weights
        Of the clients, in the same order.
    like
        The buffers whose shapes and dtypes the result has; what nobody sent is left out of it.
    """
    result = {}
    for name, model in like.items():
        having = [(w, buffers[name]) for w, buffers in zip(weights, sent, strict=True) if name in buffers]
        if not having:
            continue
        first = having[0][1]
        if all(np.array_equal(buffer, first) for _, buffer in having[1:]):  # a constant stays what it is
            result[name] = np.array(first, dtype=model.dtype)
            continue
        mean: NDArray[Any] = np.zeros(model.shape)
        total = sum(weight for weight, _ in having)
        for weight, buffer in having:
            mean += weight / total * buffer
        if model.dtype.kind == "b":
            mean = mean >= 0.5
        elif model.dtype.kind in "iu":
            mean = np.rint(mean)
        result[name] = np.asarray(mean).astype(model.dtype)
    return result


class ClientBuffers:
    """The buffers of a simulated federation, in the `arrays` of its state: saved and resumed with it.

    Parameters
    ----------
    state
        The server's state.
    initial
        The buffers of the untrained model.
    """

    def __init__(self, state: State, initial: Buffers) -> None:
        self._state = state
        self._names = tuple(initial)
        count = state.federation.num_clients
        if not initial:
            return
        arrays = state.arrays
        if _SENT not in arrays:
            arrays[_SENT] = np.zeros(count, dtype=np.bool_)
            for name, buffer in initial.items():
                arrays[_GLOBAL + name] = np.array(buffer)
                arrays[_CLIENT + name] = np.zeros((count, *buffer.shape), dtype=buffer.dtype)
        for name, buffer in initial.items():
            for key, shape in ((_GLOBAL + name, buffer.shape), (_CLIENT + name, (count, *buffer.shape))):
                if key not in arrays or arrays[key].size != int(np.prod(shape)):
                    raise InvalidInput(
                        f"the checkpoint does not have the model's buffer {name}: it is of another model"
                    )
                arrays[key] = arrays[key].reshape(shape)

    @property
    def current(self) -> Buffers:
        """The buffers of the global model."""
        return global_buffers(self._state)

    def take(self, clients: Ints, sent: Buffers) -> None:
        """Keep what clients of a round sent, each buffer of shape (|clients|, …), and average over everybody's last."""
        if not self._names or not len(clients):
            return
        arrays = self._state.arrays
        arrays[_SENT][clients] = True
        for name in self._names:
            arrays[_CLIENT + name][clients] = sent[name]
        having = np.flatnonzero(arrays[_SENT])
        lasts = [{name: arrays[_CLIENT + name][client] for name in self._names} for client in having]
        mean = average(lasts, self._state.federation.masses(having), self.current)
        arrays |= {_GLOBAL + name: buffer for name, buffer in mean.items()}


def global_buffers(state: State) -> Buffers:
    """Return the buffers of the global model that a state has."""
    found = state.arrays.items()
    return {name.removeprefix(_GLOBAL): array for name, array in found if name.startswith(_GLOBAL)}
