"""What is learned: data sets, partitions, the label swap of the paper (Section 5.1), models, and Figure 1's quadratics.

`tasks.data`, `tasks.partition`, `tasks.label_swap` and `tasks.quadratic` need NumPy only; torch is loaded when a
`Task` or a model is first asked for, so that listing data sets or drawing Figure 1 does not wait for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import lazy
from . import data, label_swap, partition
from .names import names
from .quadratic import Quadratic

if TYPE_CHECKING:
    from . import scores
    from .adapters import from_hugging_face, from_partitions
    from .catalogue import make
    from .client_data import ClientData
    from .leaf import femnist
    from .made import MadeData, make_clients
    from .mapped import MappedData, open_clients, write_clients
    from .scores import accuracy, mean_absolute_error, sequence_cross_entropy
    from .task import Task

__all__ = [
    "ClientData",
    "MadeData",
    "MappedData",
    "Quadratic",
    "Task",
    "accuracy",
    "data",
    "femnist",
    "from_hugging_face",
    "from_partitions",
    "label_swap",
    "make",
    "make_clients",
    "mean_absolute_error",
    "names",
    "open_clients",
    "partition",
    "scores",
    "sequence_cross_entropy",
    "write_clients",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "make": "catalogue",
        "ClientData": "client_data",
        "Task": "task",
        **dict.fromkeys(("accuracy", "mean_absolute_error", "sequence_cross_entropy"), "scores"),
        **dict.fromkeys(("MadeData", "make_clients"), "made"),
        **dict.fromkeys(("MappedData", "open_clients", "write_clients"), "mapped"),
        **dict.fromkeys(("from_hugging_face", "from_partitions"), "adapters"),
        "femnist": "leaf",
        "scores": "scores",
    },
)
