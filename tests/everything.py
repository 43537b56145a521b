"""All that a state remembers, for tests that compare two of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import fedstale as fs


def arrays_of(state: fs.State) -> dict[str, NDArray[Any]]:
    """Everything by name: model, what the rule remembers with every row of every memory, estimator."""
    found = {f"rule/{path}": array for path, array in state.of_rule.arrays().items()}
    for path, memory in state.of_rule.memories().items():
        parts = {"rows": memory.rows(np.arange(memory.num_clients)), "total": memory.total, "masses": memory.masses}
        found |= {f"{path}/{name}": array for name, array in parts.items()}
    found |= {f"arrays/{name}": array for name, array in state.arrays.items()}
    if state.estimator is not None:
        found |= {f"estimator/{name}": array for name, array in state.estimator.arrays().items()}
    model = np.empty(0) if state.model is None else state.model
    return found | {"model": model, "round": np.array(state.round), "last_seen": state.last_seen}


def everything(state: fs.State) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """The same bit for bit, as something that can be compared and that does not change."""
    return {name: (array.dtype.str, array.shape, array.tobytes()) for name, array in arrays_of(state).items()}
