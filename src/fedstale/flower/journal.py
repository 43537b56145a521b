"""What a round tells: numbers for Flower's `Result` and, where asked for, for the fedstale store and its board."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import MetricRecord

from ..checks import Float
from ..durable import folder_reference, is_referenced_folder, replacing
from ..store.errors import StoreError
from .account import Account
from .aggregator import Aggregator
from .probabilities import Probabilities
from .round_facts import AppliedRound

if TYPE_CHECKING:
    from ..store import Run, Store

_OWNER = "checkpoint.json"
"""In a run's folder: the `place` of the checkpoint of the server that writes it."""
_ENDED = ("finished", "failed", "interrupted")
_PREFIX = "fedstale/"
"""Before our names in Flower's MetricRecords: clients may report metrics under any other name."""


def per_client(aggregator: Aggregator, probabilities: Probabilities) -> dict[str, Float]:
    """Return p̂ and the staleness (rounds since the last contribution) of every client; NaN for who was forgotten."""
    state, known = aggregator.state, aggregator.known
    numbers = {name: np.full(len(aggregator.identities), np.nan) for name in ("probability", "staleness")}
    names = [aggregator.identities[client] for client in known]
    numbers["probability"][known] = probabilities.values(state.estimator, known, names)
    numbers["staleness"][known] = state.round - 1.0 - state.last_seen[known].astype(np.float64)
    return numbers


def round_metrics(
    aggregator: Aggregator,
    applied: AppliedRound,
    account: Account,
    clients: Mapping[str, Float],
    forgotten: int,
    late: int,
    busy: int,
) -> dict[str, float]:
    """Return the numbers of a round; `late` replies came after their round, and `busy` nodes still work on such."""
    known = aggregator.known
    numbers: dict[str, float] = {
        "known": len(known),
        **account.numbers(),
        "forgotten": forgotten,
        "late": late,
        "busy": busy,
        "examples_cut": applied.examples_cut,
        "shortened": applied.shortened,
        "staleness_mean": float(applied.staleness.mean()) if applied.staleness.size else 0.0,
        "staleness_max": float(applied.staleness.max(initial=0.0)),
    }
    if known.size:
        numbers["p_mean"] = float(clients["probability"][known].mean())
        numbers["p_min"] = float(clients["probability"][known].min())
    beta = aggregator.state.report.get("beta")
    if beta is not None and np.isfinite(beta):
        numbers["beta"] = float(beta)
    return numbers


class Journal:
    """Writes a federation's rounds into the fedstale store, or nowhere.

    Parameters
    ----------
    store
        The store's folder, an open `fedstale.store.Store`, or None.
    """

    def __init__(self, store: str | Path | Store | None) -> None:
        self.given = store
        self._store: Store | None = None
        self._run: Run | None = None
        self._last = -1

    def open(
        self, config: Mapping[str, Any], rounds_total: int, run: str | None, round: int, checkpoint: Path | None
    ) -> str | None:
        """Begin a run of the store, or go on with one from this round; return its id.

        The run belongs to the checkpoint that it was begun with: a copy of that one must not cut and go on with it.
        """
        if self.given is None or self._run is not None:
            return None if self._run is None else self._run.id
        from ..store import Store

        self._store = self.given if isinstance(self.given, Store) else Store.open(self.given)
        if run is None:
            self._run = self._store.start(config, name=None, rounds_total=rounds_total)
        else:
            _refuse_copy(self._store.run(run), checkpoint)
            self._run = self._store.resume(run)
            self._run.truncate(round - 1)
        self._last = self._run.info().rounds_done - 1
        if self._last < round - 2:  # a process that dies leaves at most its last round untold
            missing = f"rounds {self._last + 2} to {round - 1}"
            raise StoreError(f"run {self._run.id} in {self._store.folder} lacks {missing}, which its checkpoint has")
        if checkpoint is not None:
            with replacing(self._run.folder / _OWNER) as whole:
                whole.write_text(json.dumps(folder_reference(checkpoint, self._run.folder / _OWNER)), encoding="utf-8")
        return self._run.id

    @property
    def unused(self) -> bool:
        """Whether a store was given and nobody has opened it."""
        return self.given is not None and self._run is None

    def lacks(self, index: int) -> bool:
        """Whether a round is still to be noted."""
        return self._run is not None and index > self._last

    def record(self, index: int, log: Mapping[str, Any], evaluated: Mapping[str, float], clients: Any) -> None:
        """Note a round: the pending log of the strategy, what evaluations found, and numbers per client."""
        if self._run is None or not self.lacks(index):
            return
        numbers = {**evaluated, **log.get("numbers", {})}
        self._run.record(index, numbers, participants=log.get("participants"), clients=clients)
        self._run.flush()  # rounds of a real federation are slow: the board may see each at once
        self._last = index

    def forget(self, run: str | None, clients: Iterable[int]) -> None:
        """Erase clients from the run of the store, be it open or not."""
        if self.given is None or (run is None and self._run is None):
            return
        from ..store import Store

        with ExitStack() as stack:
            opened = self._run
            if opened is None and run is not None:
                store = self.given
                if not isinstance(store, Store):
                    store = stack.enter_context(Store.open(store))
                before = store.run(run).info()
                opened = store.resume(run)
                stack.callback(opened.finish, before.status if before.status in _ENDED else "interrupted")
            if opened is not None:
                for client in clients:
                    opened.forget_client(client)

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._run is not None:
            self._run.__exit__(kind, error, trace)
        if self._store is not None and self._store is not self.given:
            self._store.close()
        self._run = self._store = None


def _refuse_copy(run: Run, checkpoint: Path | None) -> None:
    file = run.folder / _OWNER
    try:
        noted = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    if checkpoint is not None and not is_referenced_folder(noted, checkpoint, file):
        owner = os.path.realpath(run.folder / str(noted.get("path", "")))
        what = f"run {run.id} in the store belongs to the checkpoint {owner}, of which {checkpoint} is a copy"
        raise StoreError(f"{what}: copy the store together with the checkpoint, or go on with resume(path, store=None)")


def scalars(prefix: str, record: Mapping[str, Any] | None) -> dict[str, float]:
    """Return the single numbers of a MetricRecord, for the store."""
    return {
        f"{prefix}{name}": float(value) for name, value in (record or {}).items() if isinstance(value, (int, float))
    }


def to_metrics(client_metrics: MetricRecord | None, numbers: Mapping[str, float]) -> MetricRecord:
    """Return the clients' aggregated metrics with ours beside them."""
    record = MetricRecord()
    for name, value in (client_metrics or {}).items():
        record[name] = value
    for name, number in numbers.items():
        record[_PREFIX + name] = number
    return record
