"""Everything that a server remembers, in one object that saves and loads whole.

Model, memory of stale updates, estimator of p, statistics of β, round number: a rule hides nothing in itself,
which is why a resumed run continues with the same bits. A checkpoint is one folder: `state.safetensors`
(replaced atomically) and the row files it names.
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from logging import getLogger
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .checks import Float, InvalidInput
from .durable import FileTrouble, checksum, folder_errors, relative, replacing
from .federation import Federation
from .memory import Memory, StaleMemory, make, moved, parse
from .memory.rows import CHECKPOINT_FILE, owner_of
from .participation.estimator import EstimatorState

_logger = getLogger("fedstale")
_FILE = CHECKPOINT_FILE
_FORMAT = 2
_NONSENSE = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
"""What comes of taking anything for the content of a checkpoint."""


@dataclass(eq=False)
class State:
    """The server's state.

    Attributes
    ----------
    federation
        Who the clients are.
    rule
        The name of the rule that owns the state.
    where
        Description of the memory, such as "ram" or "disk:FOLDER:bfloat16".
    round
        The next round's index.
    model
        w_t, shape (d,), when the state carries it.
    memories
        Rows per client by name; "stale" holds the h_i of the paper.
    vectors
        Vectors of length d by name, such as a server optimiser's moments.
    clients
        Arrays of length N by name, such as "last_seen".
    scalars
        Numbers by name.
    extras
        Arrays of any shape by name.
    estimator
        What an estimator of p remembers, when p is estimated (`fedstale.participation.Estimator`).
    notes
        Words by name that go with the checkpoint and are not part of what the rule remembers, such as the engine.
    report
        What the last round did (not saved): β used and the like.
    """

    federation: Federation
    rule: str
    where: str = "ram"
    run: str = field(default_factory=lambda: uuid.uuid4().hex)
    round: int = 0
    model: Float | None = None
    memories: dict[str, StaleMemory] = field(default_factory=dict)
    vectors: dict[str, Float] = field(default_factory=dict)
    clients: dict[str, NDArray[Any]] = field(default_factory=dict)
    scalars: dict[str, float] = field(default_factory=dict)
    extras: dict[str, NDArray[Any]] = field(default_factory=dict)
    estimator: EstimatorState | None = None
    notes: dict[str, str] = field(default_factory=dict)
    report: dict[str, float] = field(default_factory=dict)
    # Each process saves rows kept in RAM to a file of its own: the row file of the checkpoint it was resumed
    # from stays whole until its first own checkpoint is complete.
    _token: str = field(default_factory=lambda: uuid.uuid4().hex[:8], repr=False)

    def __post_init__(self) -> None:
        rows = parse(self.where)[0]
        if rows is not None:  # wherever the process may go
            self.where = moved(self.where, rows.absolute())
        self.clients.setdefault("last_seen", np.full(self.federation.num_clients, -1, dtype=np.int64))

    def remember(self, name: str = "stale", *, exact: bool = False) -> StaleMemory:
        """Add an empty memory with one row per client; `exact` refuses approximations (what clients keep has none)."""
        n, d = self.federation.num_clients, self.federation.num_params
        self.memories[name] = make(self.where, n, d, name=name, run=self.run, exact=exact)
        return self.memories[name]

    @property
    def memory(self) -> StaleMemory:
        """The stale updates h_i."""
        return self.memories["stale"]

    def grow(self, num_clients: int, sizes: Any = None) -> None:
        """Let clients join: they get the next indices and have never been seen.

        An estimator of p is grown by itself (`Estimator.grow`), because it knows what a new client starts with.
        """
        self.federation = self.federation.grown(num_clients, sizes)
        for name, values in self.clients.items():
            more = np.full(num_clients - len(values), -1 if name == "last_seen" else 0, dtype=values.dtype)
            self.clients[name] = np.concatenate([values, more])
        for memory in self.memories.values():
            memory.grow(num_clients)

    def nbytes(self, leave_out: Sequence[str] = ()) -> int:
        """Bytes of everything remembered beside the model: rows, running sums, vectors, numbers per client.

        `leave_out` names memories whose rows, and vectors and extras that, are not the server's.
        """
        sums = sum(memory.total.nbytes for memory in self.memories.values())
        rows = sum(memory.nbytes for name, memory in self.memories.items() if name not in leave_out)
        named = {**self.vectors, **self.clients, **self.extras}
        return sums + rows + sum(array.nbytes for name, array in named.items() if name not in leave_out)

    def close(self) -> None:
        """Let go of files and locks."""
        for memory in self.memories.values():
            memory.close()

    def save(self, folder: str | Path) -> None:
        """Write a checkpoint: rows first, then the file that names them, by an atomic rename.

        Only rows that changed since the last save to the same folder are written. A crash at any moment leaves
        the previous checkpoint whole.
        """
        folder = Path(folder).absolute()
        with folder_errors(folder):
            self._save(folder)

    def _save(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        tensors: dict[str, NDArray[Any]] = {}
        files: dict[str, str] = {}
        for name, memory in self.memories.items():
            mirror = folder / f"{name}-{self._token}.rows"
            for key, array in memory.table(mirror).items():
                tensors[f"memory/{name}/{key}"] = array
            files[name] = "" if memory.inline else relative(memory.file or mirror, folder)
        for group in ("vectors", "clients", "extras"):
            for name, array in getattr(self, group).items():
                tensors[f"{group}/{name}"] = array
        for name, array in _federation_arrays(self.federation).items():
            tensors[f"federation/{name}"] = array
        if self.estimator is not None:
            tensors |= {f"estimator/{name}": array for name, array in self.estimator.arrays().items()}
        if self.model is not None:
            tensors["model"] = self.model
        about = {
            "format": _FORMAT,
            "rule": self.rule,
            "where": self._seen_from(folder),
            "run": self.run,
            "round": self.round,
            "scalars": {name: value.hex() for name, value in self.scalars.items()},
            "notes": self.notes,
            "num_clients": self.federation.num_clients,
            "num_params": self.federation.num_params,
            "weights": self.federation.weights if isinstance(self.federation.weights, str) else "given",
            "files": files,
        }
        write_tensors(folder / _FILE, tensors, about)
        for memory in self.memories.values():
            memory.saved()
        _sweep(folder, files.values())

    def _seen_from(self, folder: Path) -> str:
        """Describe the memory with its folder as seen from the checkpoint, so that both can be copied or moved."""
        rows = parse(self.where)[0]
        return self.where if rows is None else moved(self.where, relative(rows, folder))

    @classmethod
    def load(cls, folder: str | Path) -> State:
        """Read a checkpoint back; every array and every row is verified against its checksum."""
        try:
            return cls._load(Path(folder))
        except (InvalidInput, OSError):
            raise
        except _NONSENSE as error:  # whole, and not what a state is made of: somebody else wrote it
            what = f"{type(error).__name__}: {error}"
            raise InvalidInput(f"checkpoint {folder} is damaged: it holds no state ({what})") from None

    @classmethod
    def _load(cls, folder: Path) -> State:
        tensors, about = read_tensors(folder / _FILE)
        if about.get("format") != _FORMAT:
            raise InvalidInput(f"checkpoint {folder} has format {about.get('format')!r}, this version reads {_FORMAT}")
        groups: dict[str, dict[str, NDArray[Any]]] = {}
        for key, array in tensors.items():
            group, _, name = key.partition("/")
            groups.setdefault(group, {})[name] = array
        given = groups.get("federation", {})
        federation = Federation(
            about["num_clients"],
            about["num_params"],
            weights=given["weights"] if about["weights"] == "given" else about["weights"],
            sizes=given.get("sizes"),
            probabilities=given.get("probabilities"),
        )
        state = cls(
            federation,
            about["rule"],
            where=_at(about["where"], folder),
            run=about["run"],
            round=about["round"],
            model=tensors.get("model"),
            vectors=groups.get("vectors", {}),
            clients=groups.get("clients", {}),
            scalars={name: float.fromhex(value) for name, value in about["scalars"].items()},
            extras=groups.get("extras", {}),
            estimator=EstimatorState.from_arrays(groups["estimator"]) if "estimator" in groups else None,
            notes={str(name): str(value) for name, value in about["notes"].items()},
        )
        for name, file in about["files"].items():
            table = {key.split("/", 1)[1]: a for key, a in groups["memory"].items() if key.startswith(f"{name}/")}
            state.memories[name] = _restore(state, name, folder, file, table)
        return state


def write_tensors(path: Path, tensors: dict[str, NDArray[Any]], about: dict[str, Any]) -> None:
    """Write arrays and facts to one safetensors file, replaced whole."""
    from safetensors.numpy import save

    arrays = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    sums = {name: checksum(array) for name, array in arrays.items()}
    facts = json.dumps(about, sort_keys=True)
    metadata = {
        "about": facts,
        "checksums": json.dumps(sums),
        "checksum": str(checksum(facts.encode())),
        "layout": _layout(arrays),
    }
    with replacing(path, private=True) as whole:
        whole.write_bytes(save(arrays, metadata=metadata))


def read_tensors(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Read what `write_tensors` wrote; a damaged file is an error, never a wrong number."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise InvalidInput(f"there is no checkpoint at {path.parent}")
    if (size := path.stat().st_size) > _memory():  # the reader would abort, or the system end the process
        raise InvalidInput(f"checkpoint {path} is damaged: it has {size:,} bytes, more than this machine's memory")
    try:
        with safe_open(str(path), framework="np") as file:
            metadata = file.metadata() or {}
            tensors = {name: np.array(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
        about, sums = metadata["about"], json.loads(metadata["checksums"])
        sound = metadata["checksum"] == str(checksum(about.encode())) and sums.keys() == tensors.keys()
        sound = sound and metadata["layout"] == _layout(tensors)
        facts: dict[str, Any] = json.loads(about)
    except (SafetensorError, OSError, MemoryError, *_NONSENSE) as error:
        raise InvalidInput(f"checkpoint {path} is damaged: {error}") from None
    if not sound or any(checksum(array) != sums[name] for name, array in tensors.items()):
        raise InvalidInput(f"checkpoint {path} is damaged: a checksum does not match")
    return tensors, facts


def _memory() -> int:
    """Bytes of memory of this machine, where the system tells."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return sys.maxsize


def _layout(arrays: dict[str, NDArray[Any]]) -> str:
    """Checksum of what the arrays' bytes do not tell: dtypes and shapes."""
    text = json.dumps([[name, array.dtype.str, array.shape] for name, array in sorted(arrays.items())])
    return str(checksum(text.encode()))


def _at(where: str, checkpoint: Path) -> str:
    """Describe a memory whose folder is given as seen from the checkpoint."""
    rows = parse(where)[0]
    return where if rows is None else moved(where, os.path.normpath(os.path.realpath(checkpoint) / rows))


def _restore(state: State, name: str, folder: Path, file: str, table: dict[str, NDArray[Any]]) -> StaleMemory:
    """Take a memory up again: on disk where it lies, by a copy of its saved rows, or from the table alone.

    Rows kept in RAM are copied there. Rows on disk that belong to another checkpoint, of which this one is a copy, are
    copied into this one's folder: going on with it must not change the other.
    """
    on_disk, kind = parse(state.where)
    size = state.federation.num_clients, state.federation.num_params
    if not file:
        inline = make(state.where, *size)
        inline.restore(table)
        return inline
    path = Path(os.path.normpath(os.path.realpath(folder) / Path(file)))
    if not path.is_file():
        what = f"memory file {path} is missing: checkpoint {folder} has its rows there"
        raise FileTrouble(f"{what}; copy or move it along, so that it lies at {file} as seen from the checkpoint")
    owner = owner_of(path, folder) if on_disk else None
    saved = Memory(*size, kind, path, state.run, "read" if not on_disk else "write" if owner is None else "copy")
    try:
        saved.restore(table)
        if on_disk and owner is None:
            return saved
    except InvalidInput as error:
        saved.close()
        if owner is None:
            raise
        what = f"checkpoint {folder} is a copy of {owner}, whose rows in {path} have changed since"
        raise FileTrouble(f"{what} ({error}): copy the rows together with the checkpoint") from None
    try:
        if owner is None:
            memory = Memory(*size, kind, run=state.run)
        else:
            _logger.warning("the rows in %s belong to another checkpoint: %s gets a copy of its own", path, folder)
            state.where = moved(state.where, folder.absolute())
            memory = Memory(*size, kind, folder / f"{name}-{state._token}.rows", run=state.run)
        memory.read_from(saved)
    finally:
        saved.close()
    return memory


def _federation_arrays(federation: Federation) -> dict[str, NDArray[Any]]:
    arrays = {name: getattr(federation, name) for name in ("weights", "sizes", "probabilities")}
    return {name: array for name, array in arrays.items() if isinstance(array, np.ndarray)}


def _sweep(folder: Path, needed: Iterable[str]) -> None:
    """Remove row files that no checkpoint names any more, and what a killed process had begun to write."""
    kept = {os.path.normpath(folder / file) for file in needed}
    for file in (*folder.glob("*-*.rows"), *folder.glob(f".{_FILE}.*.tmp")):
        if os.path.normpath(file) not in kept:
            file.unlink(missing_ok=True)
