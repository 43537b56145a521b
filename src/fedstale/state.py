"""Everything that a server remembers, in one object that saves and loads whole.

Model, memory of stale updates, estimator of p, statistics of β, round number: a rule hides nothing in itself,
which is why a resumed run continues with the same bits. A checkpoint is one folder: `state.safetensors`
(replaced atomically) and the row files it names.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from logging import getLogger
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from .checks import Float, InvalidInput, fail
from .durable import FileTrouble, folder_errors, relative
from .federation import Federation, Ints
from .memory import Memory, StaleMemory, make, moved, parse
from .memory.rows import CHECKPOINT_FILE, owner_of
from .participation.estimator import EstimatorState
from .rule_state import RuleState
from .tensor_file import NONSENSE, read_tensors, write_tensors

S = TypeVar("S", bound=RuleState)

_logger = getLogger("fedstale")
_FILE = CHECKPOINT_FILE
_FORMAT = 3


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
    last_seen
        The last round of each client, −1 for a client never seen, shape (N,).
    of_rule
        What the rule remembers; each rule declares its own (`fedstale.rule_state.RuleState`).
    estimator
        What an estimator of p remembers, when p is estimated (`fedstale.participation.Estimator`).
    arrays, notes
        Arrays and texts by name that are saved with the checkpoint and are not part of what the rule remembers, such as
        the running means of a batch normalisation, and the engine.
    report
        What the last round did (not saved): β used and the like.
    """

    federation: Federation
    rule: str
    where: str = "ram"
    run: str = field(default_factory=lambda: uuid.uuid4().hex)
    round: int = 0
    model: Float | None = None
    last_seen: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    of_rule: RuleState = field(default_factory=RuleState)
    estimator: EstimatorState | None = None
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    report: dict[str, float] = field(default_factory=dict)
    # Each process saves rows kept in RAM to a file of its own: the row file of the checkpoint it was resumed
    # from stays whole until its first own checkpoint is complete.
    _token: str = field(default_factory=lambda: uuid.uuid4().hex[:8], repr=False)
    _names: list[str] = field(default_factory=list, repr=False)  # of the memories that were made

    def __post_init__(self) -> None:
        rows = parse(self.where)[0]
        if rows is not None:  # wherever the process may go
            self.where = moved(self.where, rows.absolute())
        if not self.last_seen.size:
            self.last_seen = np.full(self.federation.num_clients, -1, dtype=np.int64)

    def remember(self, name: str = "stale", *, exact: bool = False) -> StaleMemory:
        """Make an empty memory with one row per client, for a field of this name of the rule's state.

        `exact` refuses approximations: what clients keep has none. On disk a second memory of the same name, of a rule
        inside another, has a file of its own.
        """
        n, d = self.federation.num_clients, self.federation.num_params
        self._names.append(name)
        if (count := self._names.count(name)) > 1:
            name = f"{name}.{count}"
        return make(self.where, n, d, name=name, run=self.run, exact=exact)

    def own(self, kind: type[S]) -> S:
        """Return what the rule remembers, which must be of this kind: the state of another rule is refused."""
        if not isinstance(self.of_rule, kind):
            found = f"state of {self.rule} with a {type(self.of_rule).__name__}"
            raise fail("state", found, f"must hold a {kind.__name__}: it was made by a rule with other options")
        return self.of_rule

    def inside(self, part: RuleState) -> State:
        """Return this state as a rule (or β) inside another sees it: all is shared, and `of_rule` is its own part."""
        seen = object.__new__(State)
        seen.__dict__ |= self.__dict__ | {"of_rule": part}
        return seen

    @property
    def memory(self) -> StaleMemory:
        """The stale updates h_i: the rule's field `stale`, wherever it is."""
        for path, memory in self.of_rule.memories().items():
            if path.rpartition("/")[2] == "stale":
                return memory
        raise fail("rule", self.rule, "does not keep stale updates")

    def grow(self, num_clients: int, sizes: Any = None) -> None:
        """Let clients join: they get the next indices and have never been seen.

        An estimator of p is grown by itself (`Estimator.grow`), because it knows what a new client starts with.
        """
        self.federation = self.federation.grown(num_clients, sizes)
        new = np.full(num_clients - len(self.last_seen), -1, dtype=np.int64)
        self.last_seen = np.concatenate([self.last_seen, new])
        self.of_rule.grow(num_clients)

    def forget(self, clients: Ints) -> None:
        """Let clients leave the objective: α_i = 0, no memory, never seen. Their indices are not given to others.

        The weights of those who stay are as if the others had never been there. An estimator of p forgets by itself
        (`Estimator.forget`).
        """
        self.check_forgets()
        self.federation = self.federation.without(clients)
        self.last_seen[clients] = -1
        self.of_rule.forget(clients)

    def check_forgets(self) -> None:
        """Refuse to forget where a memory cannot; nothing was changed."""
        for memory in self.of_rule.memories().values():
            if not memory.forgets:
                memory.forget([])  # says why

    @property
    def nbytes(self) -> int:
        """Bytes that the server keeps beside the model: rows, running sums, vectors, numbers per client."""
        return self.last_seen.nbytes + self.of_rule.nbytes

    def close(self) -> None:
        """Let go of files and locks."""
        for memory in self.of_rule.memories().values():
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
        memories = self.of_rule.memories()
        for path, memory in memories.items():
            mirror = self._row_file(path, folder)
            for key, array in memory.table(mirror).items():
                tensors[f"memory/{path}/{key}"] = array
            files[path] = "" if memory.inline else relative(memory.file or mirror, folder)
        groups = {
            "rule": self.of_rule.arrays(),
            "federation": _federation_arrays(self.federation),
            "estimator": {} if self.estimator is None else self.estimator.arrays(),
            "arrays": self.arrays,
        }
        tensors |= {f"{group}/{name}": array for group, arrays in groups.items() for name, array in arrays.items()}
        tensors["last_seen"] = self.last_seen
        if self.model is not None:
            tensors["model"] = self.model
        about = {
            "format": _FORMAT,
            "rule": self.rule,
            "where": self._seen_from(folder),
            "run": self.run,
            "round": self.round,
            "of_rule": self.of_rule.describe(),
            "notes": self.notes,
            "num_clients": self.federation.num_clients,
            "num_params": self.federation.num_params,
            "weights": self.federation.weights if isinstance(self.federation.weights, str) else "given",
            "files": files,
        }
        write_tensors(folder / _FILE, tensors, about)
        for memory in memories.values():
            memory.saved()
        _sweep(folder, files.values())

    def _row_file(self, path: str, folder: Path) -> Path:
        """Name the row file in a checkpoint's folder of the memory with this path."""
        return folder / f"{path.replace('/', '.')}-{self._token}.rows"

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
        except NONSENSE as error:  # whole, and not what a state is made of: somebody else wrote it
            what = f"{type(error).__name__}: {error}"
            raise InvalidInput(f"checkpoint {folder} is damaged: its content is not a state ({what})") from None

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
        last_seen = tensors["last_seen"]
        if last_seen.shape != (federation.num_clients,) or last_seen.dtype != np.int64:
            raise InvalidInput(f"checkpoint {folder} is damaged: last_seen must be {federation.num_clients} integers")
        state = cls(
            federation,
            about["rule"],
            where=_at(about["where"], folder),
            run=about["run"],
            round=about["round"],
            model=tensors.get("model"),
            arrays=groups.get("arrays", {}),
            last_seen=last_seen,
            estimator=EstimatorState.from_arrays(groups["estimator"]) if "estimator" in groups else None,
            notes={str(name): str(value) for name, value in about["notes"].items()},
        )

        def memory(path: str) -> StaleMemory:
            rows = groups["memory"].items()
            table = {key.removeprefix(f"{path}/"): array for key, array in rows if key.startswith(f"{path}/")}
            return _restore(state, path, folder, about["files"][path], table)

        arrays = groups.get("rule", {})
        state.of_rule = RuleState.rebuild(about["of_rule"], arrays, memory, federation.num_clients)
        return state


def _at(where: str, checkpoint: Path) -> str:
    """Describe a memory whose folder is given as seen from the checkpoint."""
    rows = parse(where)[0]
    return where if rows is None else moved(where, os.path.normpath(os.path.realpath(checkpoint) / rows))


def _restore(state: State, path: str, folder: Path, file: str, table: dict[str, NDArray[Any]]) -> StaleMemory:
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
    rows = Path(os.path.normpath(os.path.realpath(folder) / Path(file)))
    if not rows.is_file():
        what = f"memory file {rows} is missing: checkpoint {folder} has its rows there"
        raise FileTrouble(
            f"{what}; move or copy it together with the checkpoint, to {file} relative to the checkpoint's folder"
        )
    owner = owner_of(rows, folder) if on_disk else None
    saved = Memory(*size, kind, rows, state.run, "read" if not on_disk else "write" if owner is None else "copy")
    try:
        saved.restore(table)
        if on_disk and owner is None:
            return saved
    except InvalidInput as error:
        saved.close()
        if owner is None:
            raise
        what = f"checkpoint {folder} is a copy of {owner}, whose rows in {rows} have changed since"
        raise FileTrouble(f"{what} ({error}): copy the rows together with the checkpoint") from None
    try:
        if owner is None:
            memory = Memory(*size, kind, run=state.run)
        else:
            _logger.warning(
                "memory file %s belongs to another checkpoint: checkpoint %s continues with a copy of it", rows, folder
            )
            state.where = moved(state.where, folder.absolute())
            memory = Memory(*size, kind, state._row_file(path, folder), run=state.run)
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
