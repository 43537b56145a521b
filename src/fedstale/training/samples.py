"""The samples where and how the engines read them: on the device, one row per sample, channels last for convolutions.

A batch is one `index_select`: no data loader, no collation, no worker processes.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..tasks.task import ClientData


class Samples:
    """One split of a task.

    Parameters
    ----------
    split
        The clients' samples.
    channels_last
        Whether inputs (n, C, H, W) are kept as rows of (H, W, C), as convolutions like them on every device. This
        copies the inputs, unless C = 1.
    device
        Where they are kept.
    """

    def __init__(self, split: ClientData, channels_last: bool, device: torch.device) -> None:
        x = split.x.movedim(1, -1) if channels_last else split.x
        self._channels_last = channels_last
        self._shape = x.shape[1:]
        self._rows = x.reshape(len(x), -1).to(device)
        self.y = split.y.to(device)
        self.offsets: NDArray[np.int64] = split.offsets

    @property
    def features(self) -> int:
        """Numbers in one input."""
        return self._rows.shape[1]

    def inputs(self, rows: Tensor | slice) -> Tensor:
        """Return the inputs of some samples, shape (|rows|, …) as the task has it."""
        selected = self._rows[rows] if isinstance(rows, slice) else self._rows.index_select(0, rows)
        x = selected.view(-1, *self._shape)
        return x.movedim(-1, 1) if self._channels_last else x
