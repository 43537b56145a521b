"""The server's side of Algorithm 1: model, rule, memory, estimator and identities, round after round.

Everything that changes is in the library's `State`, which saves and loads whole; what only Flower needs (names
and dtypes of the arrays, identities) travels in its notes and arrays.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from ..checks import Float, InvalidInput, fail
from ..federation import Federation, Ints, Round
from ..memory import Memory
from ..rules import Rule
from ..screening import fault
from ..state import State
from .bounds import LengthBound
from .layout import BadArrays, Layout, decode, read_arrays
from .probabilities import Probabilities
from .replies import ClientReply, LeftOut

_FACTS = "flower"
"""The note of a checkpoint that holds the facts about the strategy, as JSON."""
_BUFFER, _RETURNED = "buffer/", "returned/"
"""Before the names of its arrays."""
_CLIENT_BUFFER, _HAVING = "client-buffer/", "client-buffer-of/"
_LAST_HEARD = "last_heard"
_UPDATE_LENGTHS, _BUFFER_LENGTHS = "update_lengths", "buffer_lengths"
_ENOUGH_FOR_A_MEDIAN = 4
"""Clients from which on the median of their sizes says what is usual."""


@dataclass(frozen=True)
class AppliedRound:
    """What a round did: the participants' indices and p_i, their replies in that order, and who was left out."""

    clients: Ints
    probabilities: Float
    replies: list[ClientReply]
    left_out: list[LeftOut]
    staleness: Float
    """How many rounds ago the clients known before had contributed last."""
    examples_cut: int
    """How many claims to have very many examples were cut down."""
    shortened: int
    """How many replies were much longer than usual, and shortened."""


@dataclass(frozen=True)
class RoundSetting:
    """What the server knows of a round before it looks at the replies.

    Attributes
    ----------
    asked_share
        The probability that a connected node was asked.
    connected
        The clients that were there, asked or not, as far as they are known.
    not_asked
        The clients of whom it was not seen whether they would answer.
    never_asked
        How many nodes were there that nobody has asked yet: clients who are not known.
    at_least
        N, where it is known from elsewhere.
    max_clients
        How many may become known.
    max_examples_ratio, max_norm_ratio
        How many times the median of the other clients a claimed number of examples and an update may be.
    halve_rows_every
        Rounds after which a row that was not renewed is halved.
    """

    asked_share: float = 1.0
    connected: Sequence[int] = ()
    not_asked: Sequence[int] = ()
    never_asked: int = 0
    at_least: int = 0
    max_clients: int | None = None
    max_examples_ratio: float | None = None
    max_norm_ratio: float | None = None
    halve_rows_every: int | None = None


@dataclass(frozen=True)
class _ClientUpdate:
    """A valid reply: its Δ_i and its buffers."""

    reply: ClientReply
    row: NDArray[Any]
    buffers: dict[str, NDArray[Any]]


class Aggregator:
    """A federation's model and everything the server remembers.

    Parameters
    ----------
    state
        The rule's state, with the model as one vector.
    layout, buffers
        How the vector becomes the model's arrays, and the arrays beside it.
    identities
        The clients known so far; a client's position is its index in the state. "" for a client that was forgotten.
    by_sample
        Whether α_i follows the number of examples that a client reports.
    """

    def __init__(
        self,
        state: State,
        layout: Layout,
        buffers: dict[str, NDArray[Any]],
        identities: Sequence[str],
        *,
        by_sample: bool,
    ) -> None:
        self.state = state
        self.layout = layout
        self.buffers = buffers
        self.identities = list(identities)
        self.by_sample = by_sample
        self.last_heard = np.zeros(len(self.identities), dtype=np.int64)
        """The last round in which a client contributed, or was connected as far as that is known, shape (n,)."""
        self.returned: ArrayRecord | None = None
        self.update_lengths, self.buffer_lengths = LengthBound(), LengthBound()
        self.client_buffers: dict[int, dict[str, NDArray[Any]]] = {}
        """What each client sent last of the arrays beside the vector: who is away is in their average too."""
        self._index = {name: i for i, name in enumerate(self.identities) if name}
        self._rows = np.empty((0, layout.num_params), dtype=layout.dtype)

    @classmethod
    def start(
        cls,
        rule: Rule,
        arrays: ArrayRecord,
        probabilities: Probabilities,
        *,
        weights: Literal["client", "sample"],
        memory: str,
        averaged_buffers: Sequence[str],
    ) -> Aggregator:
        """Start a federation with this model; clients are added as they reply."""
        model = read_arrays(arrays)
        layout = Layout.of(model, averaged_buffers)
        vector, buffers = layout.split(model)
        if not np.isfinite(vector).all():
            raise fail("initial_arrays", "NaN or infinity", "the first model must be finite")
        # α_i ∝ n_i, with n_i = 1 where every client weighs the same. One row, the next that is free, stands for all
        # clients that are not known yet.
        federation = Federation(1, layout.num_params, weights="sample", sizes=[1.0])
        state = rule.init(federation, memory=memory, model=vector)
        refuse_local_work(rule, state, np.zeros(1, dtype=np.int64))
        state.estimator = probabilities.start(1)
        return cls(state, layout, buffers, [], by_sample=weights == "sample")

    @property
    def model(self) -> NDArray[Any]:
        """w_t, shape (d,)."""
        model = self.state.model
        assert model is not None  # noqa: S101 - a server's state always carries it
        return model

    def arrays(self) -> ArrayRecord:
        """Return the model as Flower sends it."""
        return self.layout.join(self.model, self.buffers)

    @property
    def known(self) -> Ints:
        """The indices of the clients that are in the objective."""
        return np.array(sorted(self._index.values()), dtype=np.int64)

    def index(self, identity: str | None) -> int | None:
        """Return a client's index in the state, if it has one."""
        return None if identity is None else self._index.get(identity)

    def read_fitting(self, arrays: ArrayRecord) -> dict[str, NDArray[Any]]:
        """Read a model, and refuse one whose arrays have other names, shapes or dtypes."""
        model = read_arrays(arrays)
        wanted = {slot.name: (slot.shape, slot.dtype) for slot in self.layout.slots}
        if {name: (array.shape, array.dtype) for name, array in model.items()} != wanted:
            raise fail("arrays", sorted(model), "the model's arrays must keep their names, shapes and dtypes")
        return model

    def set_model(self, arrays: ArrayRecord) -> None:
        """Let the next round start from this model, which must have the same layout."""
        vector, self.buffers = self.layout.split(self.read_fitting(arrays))
        np.copyto(self.model, vector)

    def apply_round(
        self,
        rule: Rule,
        index: int,
        replies: Sequence[ClientReply],
        probabilities: Probabilities,
        setting: RoundSetting,
    ) -> AppliedRound:
        """Apply one round: Δ_i = w_t − w_i of those whose reply is valid, then the rule and the server step."""
        last = self.state.last_seen
        staleness = (index - last[last >= 0]).astype(np.float64)
        found = self._admitted(self._read(replies, probabilities), setting.max_clients)
        updates = [item for item in found if isinstance(item, _ClientUpdate)]
        cut = self._register([update.reply for update in updates], probabilities, setting)
        updates.sort(key=lambda update: self._index[update.reply.identity])  # the order of all sums
        shortened = self._shorten(updates, setting.max_norm_ratio)
        valid = [update.reply for update in updates]
        clients = np.array([self._index[reply.identity] for reply in valid], dtype=np.int64)
        p = probabilities.values(
            self.state.estimator, clients, [reply.identity for reply in valid], setting.asked_share
        )
        refuse_local_work(rule, self.state, clients)
        rule.step(self.state, Round(index, clients, [update.row for update in updates], probabilities=p))
        if valid and self.layout.buffers:
            for client, update in zip(clients.tolist(), updates, strict=True):
                # A view of the reply would keep all of it in memory.
                copies = {name: np.array(buffer) for name, buffer in update.buffers.items()}
                self.client_buffers[client] = self.client_buffers.get(client, {}) | copies
            having = sorted(self.client_buffers)
            masses = self.state.federation.masses(np.array(having, dtype=np.int64))
            self.buffers |= self.layout.mean_buffers([self.client_buffers[client] for client in having], masses)
        contributed = set(clients.tolist())
        probabilities.observe(self.state.estimator, clients, [i for i in setting.not_asked if i not in contributed])
        self.last_heard[[*clients, *setting.connected]] = index
        left_out = [item for item in found if isinstance(item, LeftOut)]
        self._fade(index, setting.halve_rows_every)
        return AppliedRound(clients, p, valid, left_out, staleness, cut, shortened)

    def _read(self, replies: Sequence[ClientReply], probabilities: Probabilities) -> list[_ClientUpdate | LeftOut]:
        """Compute each reply's update in a row of its own; what is wrong with an reply leaves it out."""
        rows = self._row_buffers(len(replies))
        sent = self.layout.as_sent(self.model)
        sizes = self.by_sample
        trained = self.layout.trained(reply.arrays for reply in replies)

        def read_reply(i: int) -> _ClientUpdate | LeftOut:
            reply, row = replies[i], rows[i]
            try:
                if not probabilities.knows(reply.identity):
                    raise BadArrays(f"no probability is known for client {reply.identity}")
                if sizes and reply.size is None:
                    raise BadArrays('it does not say how many examples it has, which weights="sample" needs')
                self.layout.check(reply.arrays, trained)
                with np.errstate(over="ignore", invalid="ignore"):
                    self.layout.difference(sent, reply.arrays, row)
                if (reason := fault(row)) is not None:
                    raise BadArrays(f"its update cannot be used: {reason}")
                return _ClientUpdate(reply, row, self.layout.buffers_of(reply.arrays))
            except BadArrays as error:
                return LeftOut(reply.node, "bad", str(error), reply.identity)

        return [read_reply(i) for i in range(len(replies))]

    def _admitted(
        self, found: Sequence[_ClientUpdate | LeftOut], max_clients: int | None
    ) -> list[_ClientUpdate | LeftOut]:
        """Leave out clients that are new when there are as many as there may be."""
        result: list[_ClientUpdate | LeftOut] = []
        free = np.inf if max_clients is None else max_clients - len(self._index)
        for item in found:
            new = isinstance(item, _ClientUpdate) and item.reply.identity not in self._index
            if isinstance(item, _ClientUpdate) and new and free <= 0:
                reason = f"it is new, and there are max_clients = {max_clients} already"
                result.append(LeftOut(item.reply.node, "bad", reason, item.reply.identity))
                continue
            free -= new
            result.append(item)
        return result

    def _row_buffers(self, count: int) -> Sequence[NDArray[Any]]:
        """Return rows to compute updates in: the memory's own spare ones where it keeps such rows."""
        memory = next(iter(self.state.of_rule.memories().values()), None)
        borrowed = memory.borrow_rows(count, self.layout.dtype) if isinstance(memory, Memory) else None
        if borrowed is not None:
            return borrowed
        if len(self._rows) < count:
            self._rows = np.empty((count, self.layout.num_params), dtype=self.layout.dtype)
        return list(self._rows[:count])

    def _register(self, replies: Sequence[ClientReply], probabilities: Probabilities, setting: RoundSetting) -> int:
        """Give the next indices to who is new, and take note of all sizes; return how many claims were cut."""
        before = len(self.identities)
        for reply in replies:
            if reply.identity not in self._index:
                self._index[reply.identity] = len(self.identities)
                self.identities.append(reply.identity)
        state, known = self.state, len(self.identities)
        # After a restart it is not known yet which of the known clients are behind the connected nodes.
        there = len(setting.connected) + known - before + setting.never_asked
        self.last_heard = np.concatenate([self.last_heard, np.full(known - len(self.last_heard), state.round)])
        rows = max(known + 1, state.federation.num_clients)
        old = np.asarray(state.federation.sizes)
        sizes = np.zeros(rows)
        sizes[self.known] = np.pad(old, (0, rows - len(old)))[self.known]
        claims = {self._index[reply.identity]: float(reply.size or 0.0) if self.by_sample else 1.0 for reply in replies}
        former = sizes.copy()
        sizes[list(claims)] = list(claims.values())
        cut = self._cut_claims(sizes, claims, setting.max_examples_ratio)
        self._follow(former, sizes, claims)
        others = max(setting.at_least - len(self._index), there - len(self._index), 0)
        sizes[known] = others * (sizes[self.known].mean() if self._index else 1.0)
        if not sizes.any():
            sizes[known] = 1.0
        state.grow(rows, sizes)
        if state.estimator is not None and state.estimator.num_clients < rows:
            probabilities.grow(state.estimator, rows)
        probabilities.forget(state.estimator, [*range(before, known)])  # a row may have been there for a while
        return cut

    def _shorten(self, updates: Sequence[_ClientUpdate], ratio: float | None) -> int:
        """Shorten updates and changes of buffers that are much longer than usual; return how many replies had such."""
        clients = {self._index[update.reply.identity]: update for update in updates}
        lengths = {client: float(np.linalg.norm(update.row)) for client, update in clients.items()}
        factors = self.update_lengths.factors(lengths, ratio)
        real = [slot.name for slot in self.layout.buffers if slot.dtype.kind == "f"]
        changes = {client: self._changes(update, real) for client, update in clients.items()}
        squares = {client: sum(np.vdot(a, a) for a in change.values()) for client, change in changes.items() if change}
        far = {client: float(np.sqrt(square)) for client, square in squares.items()}
        buffer_factors = self.buffer_lengths.factors(far, ratio)
        for client, update in clients.items():
            if factors[client] < 1.0:
                np.multiply(update.row, factors[client], out=update.row, casting="same_kind")
            if (factor := buffer_factors.get(client, 1.0)) < 1.0:
                for name, change in changes[client].items():
                    update.buffers[name] = (self.buffers[name] + factor * change).astype(self.buffers[name].dtype)
        return sum(factors[client] < 1.0 or buffer_factors.get(client, 1.0) < 1.0 for client in clients)

    def _changes(self, update: _ClientUpdate, names: Sequence[str]) -> dict[str, Float]:
        """Return by how much a reply's buffers differ from those that were sent."""
        there = [name for name in names if name in update.buffers]
        return {name: update.buffers[name].astype(np.float64) - self.buffers[name] for name in there}

    def _fade(self, index: int, every: int | None) -> None:
        """Halve rows that nobody has renewed for so many rounds, and again after as many.

        The update is unbiased whatever is in the memory: this only keeps it from repeating for ever what was once sent.
        """
        if every is None:
            return
        for memory in self.state.of_rule.memories().values():
            if not isinstance(memory, Memory):
                continue
            age = index - self.state.last_seen[memory.seen]
            for client in memory.seen[(age > 0) & (age % every == 0)]:
                memory.replace([client], 0.5 * memory.rows([client]), [memory.masses[client]])

    def _cut_claims(self, sizes: Float, claims: Mapping[int, float], ratio: float | None) -> int:
        """Cut claimed sizes down to a multiple of the median, once there are enough clients to have one."""
        if ratio is None or not self.by_sample or len(self._index) < _ENOUGH_FOR_A_MEDIAN:
            return 0
        most = ratio * float(np.median(sizes[self.known]))
        cut = [client for client in claims if sizes[client] > most]
        sizes[cut] = most
        return len(cut)

    def _follow(self, before: Float, sizes: Float, claims: Iterable[int]) -> None:
        """Let rows in memory count with the new sizes of their clients."""
        for client in claims:
            for memory in self.state.of_rule.memories().values():
                if client < memory.num_clients and memory.slots[client] >= 0 and before[client] != sizes[client]:
                    mass = memory.masses[client] * (sizes[client] / before[client])
                    memory.replace([client], memory.rows([client]), masses=[mass])

    def overdue(self, index: int, forget_after: int | None, forget_nodes_after: int | None) -> list[str]:
        """Return who was not heard of for so many rounds; clients known by a node id only have a limit of their own."""
        gone = []
        for client in self.known:
            name = self.identities[client]
            limit = forget_nodes_after if name.startswith("node:") else forget_after
            if limit is not None and index - self.last_heard[client] >= limit:
                gone.append(name)
        return gone

    def forget(self, identities: Sequence[str], probabilities: Probabilities) -> list[int]:
        """Let clients leave: row, identity and statistics are gone, N and α follow; return the indices they had."""
        clients = [self._index.pop(name) for name in identities]
        state = self.state
        for client in clients:
            self.identities[client] = ""
            self.client_buffers.pop(client, None)
            self.update_lengths.forget(client)
            self.buffer_lengths.forget(client)
        if not self._index:  # nobody is left: as before the first round, one row that stands for all
            sizes = np.array(state.federation.sizes)
            sizes[len(self.identities)] = 1.0
            state.grow(len(sizes), sizes)
        state.forget(np.array(clients, dtype=np.int64))
        probabilities.forget(state.estimator, clients)
        self._rows = np.empty((0, self.layout.num_params), dtype=self.layout.dtype)
        return clients

    def erase_spare(self) -> None:
        """Overwrite what is left of rows that are nobody's any more."""
        for memory in self.state.of_rule.memories().values():
            memory.erase_spare()

    def save(
        self,
        folder: Path,
        strategy: Mapping[str, Any],
        pending_log: Mapping[str, Any],
        returned: ArrayRecord | None = None,
    ) -> None:
        """Write a checkpoint (see `State.save`), with facts about the strategy and about the last round.

        `returned` is the model that the round gave, where a strategy built on this one has changed it since: a loop
        that goes through the round again changes it again.
        """
        self.returned = returned
        facts = {
            "strategy": strategy,
            "layout": self.layout.describe(),
            "identities": self.identities,
            "pending_log": pending_log,
            "by_sample": self.by_sample,
        }
        self.state.notes[_FACTS] = json.dumps(facts, sort_keys=True)
        self.state.arrays = {_BUFFER + name: array for name, array in self.buffers.items()}
        self.state.arrays[_LAST_HEARD] = self.last_heard
        for name, bound in ((_UPDATE_LENGTHS, self.update_lengths), (_BUFFER_LENGTHS, self.buffer_lengths)):
            self.state.arrays[name] = np.array(sorted(bound.last.items()), dtype=np.float64).reshape(-1, 2)
        for slot in self.layout.buffers:
            having = [client for client in sorted(self.client_buffers) if slot.name in self.client_buffers[client]]
            if having:
                stacked = np.stack([self.client_buffers[client][slot.name] for client in having])
                self.state.arrays[_CLIENT_BUFFER + slot.name] = stacked
                self.state.arrays[_HAVING + slot.name] = np.array(having, dtype=np.int64)
        if returned is not None:
            self.state.arrays |= {_RETURNED + slot.name: decode(returned[slot.name]) for slot in self.layout.slots}
        self.state.save(folder)

    @classmethod
    def load(cls, folder: Path) -> tuple[Aggregator, dict[str, Any], dict[str, Any]]:
        """Read a checkpoint back, with the facts about the strategy and about the last round."""
        state = State.load(folder)
        if _FACTS not in state.notes or state.model is None:
            state.close()
            raise InvalidInput(f"checkpoint {folder} is not of a Flower strategy")
        facts = json.loads(state.notes[_FACTS])
        layout = Layout.from_description(facts["layout"])
        saved = state.arrays
        buffers = {s.name: saved[_BUFFER + s.name].reshape(s.shape) for s in layout.buffers}
        aggregator = cls(state, layout, buffers, facts["identities"], by_sample=facts["by_sample"])
        aggregator.last_heard = saved[_LAST_HEARD]
        for name, bound in ((_UPDATE_LENGTHS, aggregator.update_lengths), (_BUFFER_LENGTHS, aggregator.buffer_lengths)):
            bound.last = {int(client): float(length) for client, length in saved[name].reshape(-1, 2)}
        for slot in layout.buffers:
            for k, client in enumerate(saved.get(_HAVING + slot.name, ())):
                buffer = saved[_CLIENT_BUFFER + slot.name][k].reshape(slot.shape)
                aggregator.client_buffers.setdefault(int(client), {})[slot.name] = buffer
        if all(_RETURNED + s.name in saved for s in layout.slots):
            returned = {s.name: saved[_RETURNED + s.name].reshape(s.shape) for s in layout.slots}
            aggregator.returned = ArrayRecord({name: Array(array) for name, array in returned.items()})
        return aggregator, facts["strategy"], facts["pending_log"]


def refuse_local_work(rule: Rule, state: State, clients: Ints) -> None:
    """Refuse a rule that wants its clients to train otherwise than they do for FedAvg."""
    if rule.local(state, clients) is not None or rule.second_pass(state, clients) is not None:
        raise fail("rule", rule.name, "it changes the local training of the clients, which Flower's clients do not do")
