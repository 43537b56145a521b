"""Connections of real devices, as measured: mean and deviation of the bandwidth down and up.

Yang et al., Characterizing impacts of heterogeneity in federated learning upon large-scale smartphone data (FLASH), WWW
2021. The file maps a device to `down_u`, `down_sigma`, `up_u` and `up_sigma`, in kbit/s; here they are bytes a second.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from ..checks import Float, InvalidInput
from . import data

_COLUMNS = ("down_u", "down_sigma", "up_u", "up_sigma")
_BYTES = 1000.0 / 8.0
"""A kbit in bytes."""


def read_speeds(path: Path | None = None, *, progress: bool = True) -> Float:
    """Return the measured connections in bytes a second, one row per device, shape (m, 4): mean, deviation, down, up.

    Parameters
    ----------
    path
        A file of this kind; default: the data set `device-speeds`, which is fetched if it is not there.
    progress
        Whether fetching shows a progress bar.
    """
    if path is None:
        folder = data.fetch("device-speeds", progress=progress)
        path = folder / "speed_distri.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        rows = [[float(device[name]) for name in _COLUMNS] for device in found.values()]
    except FileNotFoundError:
        raise InvalidInput(f"there is no file {path}") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidInput(f"{path} is not a file of device speeds: {type(error).__name__}: {error}") from None
    table = np.array(rows) * _BYTES
    if not len(rows) or not np.isfinite(table).all():
        raise InvalidInput(f"{path} has no device, or speeds that are not numbers")
    return table
