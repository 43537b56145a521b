"""Clients' samples in memory-mapped files: data that are larger than memory, written and read client by client.

A folder holds one `.npy` file for the inputs (or one for each of several), one for the targets, and `offsets.npy`.
Training reads the rows of its batches and nothing else. What is sent to another process is the name of the folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..checks import InvalidInput, fail
from ..durable import folder_errors, replacing
from .client_data import ClientData, Values, tensors
from .samples import Fields, read_samples, without_warning

_OFFSETS = "offsets.npy"
_PARTS = ("x", "y")


@dataclass(frozen=True, eq=False)
class MappedData(ClientData):
    """One split of every client in the files of a folder; made by `write_clients` and `open_clients`.

    Parameters
    ----------
    folder
        Where the files are.
    """

    folder: Path = Path()

    def __reduce__(self) -> tuple[Callable[[Path], MappedData], tuple[Path]]:
        """Travel as the name of the folder."""
        return open_clients, (self.folder,)


def write_clients(
    folder: str | Path,
    clients: Iterable[Any],
    *,
    inputs: str | list[str] | None = None,
    target: str | None = None,
) -> MappedData:
    """Write clients' samples to the files of a folder, one client after the other, and open them.

    Parameters
    ----------
    folder
        Where; it is made if it is not there. Files that are there are replaced once all clients are written.
    clients
        The samples of one client after the other, each as for `Task.from_datasets`; a generator may make them, so that
        one client at a time is in memory. All must have samples of the same shape and dtype.
    inputs, target
        As for `Task.from_datasets`.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> made = write_clients(folder, ((np.ones((n, 3)), np.zeros(n, dtype=int)) for n in (4, 2)))
    >>> made.sizes, made.client(1)[0].shape
    (array([4, 2]), torch.Size([2, 3]))
    """
    where, fields = Path(folder), Fields(inputs, target)
    counts: list[int] = []
    with ExitStack() as stack:
        stack.enter_context(folder_errors(where))
        where.mkdir(parents=True, exist_ok=True)
        files: dict[str, _GrowingFile] = {}
        for i, samples in enumerate(clients):
            both = zip(_PARTS, read_samples(samples, fields, f"clients[{i}]"), strict=True)
            found = {_file(part, name): t for part, values in both for name, t in tensors(values).items()}
            if not files:
                files = {name: stack.enter_context(_growing(where / name, t.numpy())) for name, t in found.items()}
            if found.keys() != files.keys():
                raise fail(
                    f"clients[{i}]", ", ".join(found), f"must have what the first client has: {', '.join(files)}"
                )
            counts.append(len(next(iter(found.values()))))
            for name, tensor in found.items():
                files[name].add(tensor.numpy(), f"clients[{i}]")
        if not counts:
            raise fail("clients", "none", "at least one client must have samples")
        temporary = stack.enter_context(replacing(where / _OFFSETS))
        with open(temporary, "wb") as file:
            np.save(file, np.concatenate([[0], np.cumsum(counts)]), allow_pickle=False)
    return open_clients(where)


def open_clients(folder: str | Path) -> MappedData:
    """Map the files that `write_clients` wrote; nothing is read before it is needed."""
    where = Path(folder).absolute()
    try:
        offsets = np.array(np.lib.format.open_memmap(where / _OFFSETS, mode="r"))
        x, y = (_mapped(where, part) for part in _PARTS)
    except (OSError, ValueError) as error:
        raise InvalidInput(f"folder {where} does not hold clients' samples: {error}") from None
    return MappedData(x, y, offsets, where)


def _file(part: str, name: str) -> str:
    return f"{part}-{name}.npy" if name else f"{part}.npy"


def _mapped(folder: Path, part: str) -> Values:
    plain = folder / _file(part, "")
    if plain.exists():
        return _tensor(plain)
    found = {path.stem.partition("-")[2]: _tensor(path) for path in sorted(folder.glob(f"{part}-*.npy"))}
    if not found:
        raise ValueError(f"there is no {plain.name}")
    return found


def _tensor(path: Path) -> Tensor:
    return without_warning(np.lib.format.open_memmap(path, mode="r"))


class _GrowingFile:
    """An array in a file that gets more rows: NumPy leaves room in the header for their number."""

    def __init__(self, file: IO[bytes], first: NDArray[Any]) -> None:
        self._file, self._dtype, self._shape, self._rows = file, first.dtype, first.shape[1:], 0
        self._write_header()
        self._begin = file.tell()

    def add(self, rows: NDArray[Any], where: str) -> None:
        """Write more rows."""
        if rows.dtype != self._dtype or rows.shape[1:] != self._shape:
            shown = f"samples of {rows.dtype} and shape {rows.shape[1:]}"
            raise fail(where, shown, f"must be of {self._dtype} and shape {self._shape}, as the first client's")
        self._file.write(np.ascontiguousarray(rows).data)
        self._rows += len(rows)

    def finish(self) -> None:
        """Write how many there are."""
        self._file.seek(0)
        self._write_header()
        if self._file.tell() != self._begin:
            raise InvalidInput("NumPy left no room for the number of rows")

    def _write_header(self) -> None:
        described = {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False}
        np.lib.format.write_array_header_1_0(self._file, {**described, "shape": (self._rows, *self._shape)})


@contextmanager
def _growing(path: Path, first: NDArray[Any]) -> Iterator[_GrowingFile]:
    """Make a growing file that takes its place when all is written."""
    with replacing(path) as temporary, open(temporary, "wb") as raw:
        file = _GrowingFile(raw, first)
        yield file
        file.finish()
