"""The server's side of Algorithm 1: model, rule, memory, estimator and identities, round after round.

Everything that changes is in the library's `State`, which saves and loads whole; what only Flower needs (names
and dtypes of the arrays, identities) travels in its notes and arrays (`checkpoint_file`).
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from logging import INFO, getLogger
from typing import Any, Literal

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from ..buffers import average
from ..checks import fail
from ..federation import Federation, Ints, Round
from ..memory import Memory
from ..rules import Rule
from ..state import State
from .client_updates import ClientUpdate, Lengths, read_updates, shorten
from .layout import BadArrays, Layout, read_arrays
from .members import Members
from .probabilities import Probabilities
from .refusals import refuse_local_work
from .replies import ClientReply, LeftOut
from .round_facts import AppliedRound, LateUpdate, RoundSetting
from .sizes import renew_sizes

_logger = getLogger("flwr")


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
        self.members = Members(identities)
        self.by_sample = by_sample
        self.returned: ArrayRecord | None = None
        self.lengths = Lengths()
        self.client_buffers: dict[int, dict[str, NDArray[Any]]] = {}
        """What each client sent last of the arrays beside the vector: who is away is in their average too."""
        self._rows = np.empty((0, layout.num_params), dtype=layout.dtype)
        self._part: AbstractSet[str] | None = None

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
    def identities(self) -> list[str]:
        """The clients by their indices in the state; "" for a client that was forgotten."""
        return self.members.identities

    @property
    def known(self) -> Ints:
        """The indices of the clients that are in the objective."""
        return self.members.known

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
        sent = self.layout.as_sent(self.model)
        part = self.layout.trained(reply.arrays for reply in replies)
        self._part = part if replies else self._part
        read = self._read(replies, probabilities, sent, part)
        self._succeed(read, setting)
        found = self._admitted(read, setting.max_clients)
        updates = [item for item in found if isinstance(item, ClientUpdate)]
        cut = self.register([update.reply for update in updates], probabilities, setting)
        updates.sort(key=lambda update: self.members[update.reply.identity])  # the order of all sums
        shortened = self._shorten(updates, setting.max_norm_ratio)
        valid = [update.reply for update in updates]
        clients = np.array([self.members[reply.identity] for reply in valid], dtype=np.int64)
        p = probabilities.values(
            self.state.estimator, clients, [reply.identity for reply in valid], setting.asked_share
        )
        refuse_local_work(rule, self.state, clients)
        rule.advance(self.state, Round(index, clients, self._rows_for(rule, updates), probabilities=p))
        self._remember_buffers(updates, index, setting.halve_rows_every)
        contributed = set(clients.tolist())
        probabilities.observe(self.state.estimator, clients, [i for i in setting.not_asked if i not in contributed])
        self.members.last_heard[[*clients, *setting.connected]] = index
        left_out = [item for item in found if isinstance(item, LeftOut)]
        self._fade(index, setting.halve_rows_every)
        return AppliedRound(clients, p, valid, left_out, staleness, cut, shortened)

    def put_late(
        self, rule: Rule, index: int, late: LateUpdate, probabilities: Probabilities, setting: RoundSetting, joined: int
    ) -> LeftOut | None:
        """Put an update that came after its round into its client's row; return why not, where it is of no use.

        `joined` clients became known in this round before. A row that is newer stays.
        """
        part = self._part if self._part is not None else self.layout.trained([late.reply.arrays])
        read = self._read([late.reply], probabilities, late.sent, part)
        self._succeed(read, setting)
        [found] = self._admitted(read, setting.max_clients)
        if isinstance(found, LeftOut):
            return replace(found, kind="late")
        client = self.members.index(late.reply.identity)
        if client is not None and self.state.last_seen[client] >= late.round:
            return LeftOut(late.reply.node, "late", "its client has sent a newer update since", late.reply.identity)
        self.register([late.reply], probabilities, setting, joined)
        self._shorten([found], setting.max_norm_ratio)
        client = self.members[late.reply.identity]
        who = np.array([client])
        p = probabilities.values(self.state.estimator, who, [late.reply.identity], setting.asked_share)
        t, rows = self.state.round, self._rows_for(rule, [found])
        rule.remember_late(self.state, Round(t, who, rows, probabilities=p, ages=[t - late.round]))
        self.state.last_seen[client] = late.round
        self._remember_buffers([found], index, setting.halve_rows_every)
        self.members.last_heard[client] = index
        return None

    def _remember_buffers(self, updates: Sequence[ClientUpdate], index: int, every: int | None) -> None:
        """Keep what clients sent of the arrays beside the vector, and average over everybody's last.

        As rows do, what nobody has renewed for `every` rounds counts half, and a quarter after as many again.
        """
        if not updates or not self.layout.buffers:
            return
        for update in updates:
            client = self.members[update.reply.identity]
            # A view of the reply would keep all of it in memory, and its dtype may be one that no file can hold.
            copies = {name: np.array(array, dtype=self.buffers[name].dtype) for name, array in update.buffers.items()}
            self.client_buffers[client] = self.client_buffers.get(client, {}) | copies
        having = np.array(sorted(self.client_buffers), dtype=np.int64)
        weights = self.state.federation.masses(having)
        if every is not None:
            weights = weights * 0.5 ** ((index - self.state.last_seen[having]) // every)
        self.buffers |= average([self.client_buffers[client] for client in having.tolist()], weights, self.buffers)

    def _read(
        self,
        replies: Sequence[ClientReply],
        probabilities: Probabilities,
        sent: NDArray[Any],
        part: AbstractSet[str],
    ) -> list[ClientUpdate | LeftOut]:
        """Return each reply's Δ_i = sent − w_i; what is wrong with a reply leaves it out."""

        def known(reply: ClientReply) -> None:
            if not probabilities.knows(reply.identity):
                raise BadArrays(f"no probability is known for client {reply.identity}")
            if self.by_sample and reply.size is None:
                raise BadArrays(f'{reply.size_fault}, which weights="sample" needs')

        return read_updates(replies, self.layout, sent, part, known)

    def _shorten(self, updates: Sequence[ClientUpdate], ratio: float | None) -> int:
        """Shorten what is much longer than usual; return how many replies had such."""
        clients = {self.members[update.reply.identity]: update for update in updates}
        return shorten(clients, self.lengths, self.buffers, ratio)

    def _succeed(self, found: Sequence[ClientUpdate | LeftOut], setting: RoundSetting) -> None:
        """Take devices that start again for who they were, as far as that can be told without an identity.

        Otherwise each start would leave a client behind that nobody renews, and those would come to be the objective.
        """
        for item in found:
            if isinstance(item, ClientUpdate):
                old = self.members.recognise(item.reply.node, item.reply.identity)
                if old is not None:
                    _logger.log(INFO, "%s says now that it is %s", old, item.reply.identity)
        if setting.most_connected is None:
            return
        names = [item.reply.identity for item in found if isinstance(item, ClientUpdate)]
        for old, new in self.members.succeed(names, setting.most_connected, setting.connected).items():
            _logger.log(INFO, "%s is new and has no identity: it takes the place of %s, silent for longest", new, old)

    def _admitted(
        self, found: Sequence[ClientUpdate | LeftOut], max_clients: int | None
    ) -> list[ClientUpdate | LeftOut]:
        """Leave out clients that are new when there are as many as there may be."""
        result: list[ClientUpdate | LeftOut] = []
        free = np.inf if max_clients is None else max_clients - len(self.members)
        for item in found:
            new = isinstance(item, ClientUpdate) and item.reply.identity not in self.members
            if isinstance(item, ClientUpdate) and new and free <= 0:
                reason = f"it is new, and there are max_clients = {max_clients} already"
                result.append(LeftOut(item.reply.node, "bad", reason, item.reply.identity))
                continue
            free -= new
            result.append(item)
        return result

    def _rows_for(self, rule: Rule, updates: Sequence[ClientUpdate]) -> Sequence[Any]:
        """Return the updates as a rule wants them: not computed yet, where its rows are written in the same pass."""
        differences = [update.difference for update in updates]
        memories = self.state.of_rule.memories().values()
        if rule.reads_once and all(isinstance(memory, Memory) for memory in memories):
            return differences
        if len(self._rows) < len(updates):
            self._rows = np.empty((len(updates), self.layout.num_params), dtype=self.layout.dtype)
        return [difference.write(row) for difference, row in zip(differences, self._rows, strict=False)]

    def register(
        self,
        replies: Sequence[ClientReply],
        probabilities: Probabilities,
        setting: RoundSetting,
        joined: int = 0,
        *,
        believed: bool = False,
    ) -> int:
        """Give the next indices to who is new, and take note of all sizes; return how many claims were cut.

        So many had `joined` in this round before, and are not among those that the setting knows. With `believed`,
        sizes count as they are: the clients were told the largest one before.
        """
        state, members = self.state, self.members
        new = members.add((reply.identity for reply in replies), state.round)
        claims = {members[reply.identity]: float(reply.size or 0.0) if self.by_sample else 1.0 for reply in replies}
        ratio = setting.max_examples_ratio if self.by_sample and not believed else None
        cut = renew_sizes(state, members, claims, len(new) + joined, ratio, setting)
        rows = state.federation.num_clients
        if state.estimator is not None and state.estimator.num_clients < rows:
            probabilities.grow(state.estimator, rows)
        probabilities.forget(state.estimator, new)  # a row may have been there for a while
        return cut

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

    def forget(self, identities: Sequence[str], probabilities: Probabilities) -> list[int]:
        """Let clients leave: row, identity and statistics are gone, N and α follow; return the indices they had."""
        state = self.state
        state.check_forgets()
        clients = self.members.remove(identities)
        for client in clients:
            self.client_buffers.pop(client, None)
            self.lengths.forget(client)
        if not len(self.members):  # nobody is left: as before the first round, one row that stands for all
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
