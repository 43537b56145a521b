"""What a user has, as tensors: pairs of arrays, tables of columns, data sets of pairs or of dicts.

Numbers with a fraction become float32, in which models compute; classes and other integer targets become int64, as
torch's losses want them. Everything else keeps its dtype: token ids stay integers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import default_collate

from ..checks import fail, unknown
from .client_data import Values, each

_TARGETS = ("y", "label", "labels", "target", "targets")
"""Names by which the target of a sample is recognised when none is given."""


@dataclass(frozen=True)
class Fields:
    """Which fields of a sample with names are what.

    Parameters
    ----------
    inputs
        The names of the inputs; default: every field that is not the target. A model is called with a single input as
        its argument, and with several as keywords.
    target
        The name of the target; default: the one of "y", "label", "labels", "target", "targets" that is there.
    transform
        Applied to the inputs, one array or a dict of them.
    """

    inputs: str | Sequence[str] | None = None
    target: str | None = None
    transform: Callable[[Any], Any] | None = None

    def parts(self, columns: Mapping[str, Any], where: str) -> tuple[Any, Any]:
        """Return inputs and target of a table of columns."""
        target = self._target(columns, where)
        if self.inputs is None:
            names = [name for name in columns if name != target]
        else:
            names = [self.inputs] if isinstance(self.inputs, str) else list(self.inputs)
        for name in names:
            if name not in columns:
                raise unknown(f"input in {where}", name, columns)
        if not names:
            raise fail(where, ", ".join(columns), "needs inputs besides the target")
        x = columns[names[0]] if len(names) == 1 else {name: columns[name] for name in names}
        return x if self.transform is None else self.transform(x), columns[target]

    def pair(self, both: Sequence[Any], where: str) -> tuple[Any, Any]:
        """Return inputs and target of samples without names."""
        if self.inputs is not None or self.target is not None:
            allowed = "inputs= and target= choose among names: samples must be dicts for that"
            raise fail(where, "a pair (x, y)", allowed)
        return both[0], both[1]

    def _target(self, columns: Mapping[str, Any], where: str) -> str:
        if self.target is not None:
            if self.target not in columns:
                raise unknown(f"target in {where}", self.target, columns)
            return self.target
        found = [name for name in _TARGETS if name in columns]
        if len(found) != 1:
            raise fail(where, ", ".join(map(str, columns)), "say which of these is the target: target=…")
        return found[0]


def read_samples(samples: Any, fields: Fields, where: str) -> tuple[Values, Values]:
    """Return the inputs and targets of one client.

    Parameters
    ----------
    samples
        A pair (x, y) of arrays or dicts of arrays; a dict of columns; or a map-style data set (with a length and
        items) of pairs or dicts, which are stacked.
    fields
        Which column is what, where they have names.
    where
        What errors call it.
    """
    if isinstance(samples, tuple) and len(samples) == 2:
        x, y = fields.pair(samples, where)
    elif isinstance(samples, Mapping):
        x, y = fields.parts(samples, where)
    elif hasattr(samples, "with_format"):  # Hugging Face: columns at once instead of item by item
        x, y = fields.parts(samples.with_format("numpy")[:], where)
    elif (
        hasattr(samples, "__len__") and hasattr(samples, "__getitem__") and not isinstance(samples, (list, str, bytes))
    ):
        x, y = _stacked(samples, fields, where)
    else:
        allowed = "must be a Dataset of (x, y) items or of dicts, a pair (x, y), or a dict of columns"
        raise fail(where, type(samples).__name__, allowed)
    x, y = as_tensors(x, f"{where}: x"), target_tensors(y, f"{where}: y")
    rows = {f"{kind}{name}": len(t) for kind, part in (("x", x), ("y", y)) for name, t in _named(part)}
    if len(set(rows.values())) > 1:
        text = ", ".join(f"{name} {count}" for name, count in rows.items())
        raise fail(where, f"{text} rows", "must have one target for each input")
    return x, y


def _named(values: Values) -> list[tuple[str, Tensor]]:
    return [(f"[{name!r}]", t) for name, t in values.items()] if isinstance(values, dict) else [("", values)]


def _stacked(samples: Any, fields: Fields, where: str) -> tuple[Any, Any]:
    items = [samples[i] for i in range(len(samples))]
    if not items:
        return torch.empty(0), torch.empty(0, dtype=torch.int64)
    try:
        together = default_collate(items)
    except (TypeError, RuntimeError) as error:  # pictures, texts, sequences of several lengths
        reason = " ".join(str(error).split())
        raise fail(where, "items", f"cannot be stacked into tensors of one shape ({reason})") from None
    if isinstance(together, Mapping):
        return fields.parts(together, where)
    if isinstance(together, (list, tuple)) and len(together) == 2:
        return fields.pair(together, where)
    raise fail(where, f"items of type {type(items[0]).__name__}", "must be pairs (x, y) or dicts")


def as_tensors(values: Any, where: str) -> Values:
    """Return inputs as tensors on the CPU: floating-point numbers as float32, others as they are."""
    if isinstance(values, Mapping):
        return {str(name): _tensor(value, f"{where}[{name!r}]") for name, value in values.items()}
    return _tensor(values, where)


def target_tensors(values: Any, where: str) -> Values:
    """Return targets as tensors: integers, and one yes or no per sample, as int64."""
    found = as_tensors(values, where)
    several = torch.bool  # a loss may want more than one of them as they are
    return each(
        found, lambda t: t if t.is_floating_point() or (t.dtype == several and t.ndim > 1) else t.to(torch.int64)
    )


def _tensor(value: Any, where: str) -> Tensor:
    if isinstance(value, Tensor):
        tensor = value.detach().cpu()
    else:
        array = np.asarray(value)
        if array.dtype.kind == "O" and hasattr(value, "to_numpy"):
            array = _of_columns(value, where)
        if array.dtype.kind not in "biuf":
            kind = "text" if array.dtype.kind in "US" else f"{array.dtype}"
            raise fail(where, kind, "must be numbers of one shape: encode classes and texts, pad sequences")
        if array.dtype.kind == "f":
            array = array.astype(np.float32, copy=False)
        if array.dtype.kind == "u" and array.dtype.itemsize > 1:  # torch computes with signed integers
            array = array.astype(np.int64)
        tensor = without_warning(array)
    if tensor.is_complex():
        raise fail(where, f"{tensor.dtype}", "must be real numbers")
    return tensor.to(torch.float32) if tensor.is_floating_point() else tensor


def _of_columns(table: Any, where: str) -> NDArray[Any]:
    """Return a data frame of several dtypes, or of such with room for what is missing, as numbers."""
    columns = zip(table.columns, table.dtypes, strict=True) if hasattr(table, "columns") else [("", table.dtype)]
    for name, dtype in columns:
        if getattr(dtype, "kind", "O") not in "biuf":
            column = f"{where}[{name!r}]" if name != "" else where
            raise fail(column, f"{dtype}", "must be numbers: encode classes, texts and times")
    if not hasattr(table, "columns") and table.dtype.kind in "biu" and not table.isna().any():
        return np.asarray(table.to_numpy(dtype=np.int64))  # pandas 2.0: classes stay classes
    return np.asarray(table.to_numpy(dtype=np.float32, na_value=np.nan))


def check_finite(values: Values, where: str) -> None:
    """Refuse NaN and infinite values."""
    for name, tensor in _named(values):
        if tensor.is_floating_point() and not _finite(tensor):
            allowed = "must be finite: fill in what is missing"
            raise fail(f"{where}{name}", "NaN or infinite values", allowed)


def _finite(tensor: Tensor, rows: int = 1 << 16) -> bool:
    return all(bool(torch.isfinite(tensor[k : k + rows]).all()) for k in range(0, len(tensor), rows))


def without_warning(array: Any) -> Tensor:
    """Make a tensor over the same memory, which is never written to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)
