"""The server's side of a memory that the clients hold: who is asked gets an order, and answers are added up."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from logging import WARNING, getLogger

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from ..checks import Float, InvalidInput, fail
from ..federation import Round
from ..memory.client_row import Answer, Order
from ..memory.held import NAME
from ..rules import Rule, held
from .aggregator import Aggregator
from .held_wire import KEY, WHO, BadAnswer, order_record, read_answer
from .identity import Identity, IdentityRefused
from .options import Options
from .probabilities import Probabilities
from .replies import ClientReply, LeftOut
from .round_facts import AppliedRound, RoundSetting
from .secure_rounds import SecureSums, secure_sums
from .sizes import largest_size

_logger = getLogger("flwr")


@dataclass(frozen=True)
class _Ordered:
    """Whom an order was for, and with which p_i."""

    identity: str | None
    p: float
    order: Order


class HeldMemory:
    """Orders and answers, from round to round.

    Parameters
    ----------
    identity, probabilities, options
        Those of the strategy.
    """

    def __init__(self, identity: Identity, probabilities: Probabilities, options: Options) -> None:
        self._identity = identity
        self._probabilities = probabilities
        self._options = options
        self._introduced: dict[int, str] = {}
        self._ordered: dict[int, _Ordered] = {}
        self._secure: SecureSums | None = None
        self.numbers: dict[str, float] = {}
        """What the last round says beside what every round says."""
        every = options["halve_rows_every"]
        self._fade = 1.0 if every is None else 0.5 ** (1.0 / every)

    def prepare(self, rule: Rule, aggregator: Aggregator) -> None:
        """Refuse what cannot be done before anybody is asked."""
        if aggregator.layout.buffers:
            name = aggregator.layout.buffers[0].name
            what = f'memory="{NAME}" adds up parameters only, and running statistics are none: use GroupNorm'
            raise fail("initial_arrays", name, what)
        why = held.needs_single_answers(rule, aggregator.state)
        if why and self._options["secure_aggregation"] is not None:
            raise fail("secure_aggregation", "SecAgg+", f"lets the server see sums alone. {why}")

    def write_orders(
        self, grid: Grid, rule: Rule, aggregator: Aggregator, index: int, messages: Sequence[Message], share: float
    ) -> list[Message]:
        """Put an order into each of the round's messages."""
        if not messages:
            self._ordered = {}
            return []
        self._introduce(grid, messages)
        state, by_sample = aggregator.state, aggregator.by_sample
        ratio = self._options["max_examples_ratio"] if by_sample else None
        most = largest_size(np.asarray(state.federation.sizes), aggregator.members, ratio)
        nodes = [message.metadata.dst_node_id for message in messages]
        names = [self._name(node) for node in nodes]
        p = self._values(aggregator, names, share)
        indices = [aggregator.members.index(name) for name in names]
        places = np.array([len(aggregator.identities) if i is None else i for i in indices], dtype=np.int64)
        orders = held.orders_for(rule, state, index, places, p, fade=self._fade, most=most)
        self._ordered = {
            node: _Ordered(name, float(value), order)
            for node, name, value, order in zip(nodes, names, p, orders, strict=True)
        }
        size_key = self._options["weighted_by_key"] if by_sample else ""
        return [
            _with(message, order_record(self._ordered[node].order, size_key, state.run))
            for node, message in zip(nodes, messages, strict=True)
        ]

    def _name(self, node: int) -> str | None:
        """Who is behind a node, as far as that is known before it answers."""
        name = self._identity.last_identity(node) or self._introduced.get(node)
        return name if name is not None and self._probabilities.knows(name) else None

    def run_secure(
        self, grid: Grid, aggregator: Aggregator, messages: Sequence[Message], server_round: int, timeout: float | None
    ) -> list[Message]:
        """Run a round through secure aggregation; return what each client said in the clear, as its reply."""
        self._secure = None
        if messages:
            self._secure = secure_sums(
                self._options["secure_aggregation"],
                grid,
                messages,
                {node: ordered.order for node, ordered in self._ordered.items()},
                server_round=server_round,
                by_sample=aggregator.by_sample,
                size_key=self._options["weighted_by_key"],
                federation=aggregator.state.run,
                arrays_key=self._options["arrayrecord_key"],
                config_key=self._options["configrecord_key"],
                timeout=timeout,
                length=aggregator.layout.num_params,
            )
        if self._secure is None:
            return []
        asked = {message.metadata.dst_node_id: message for message in messages}
        return [Message(content, reply_to=asked[node]) for node, content in self._secure.contents.items()]

    def _introduce(self, grid: Grid, messages: Sequence[Message]) -> None:
        """Ask nodes who they are, of which that is not known: an order is for a client.

        The question is a message to train, which every app takes. SecAgg+ lets no such message pass: a node that is not
        known counts as a new client there, and where it turns out to be another the round is lost, once.
        """
        if self._options["secure_aggregation"] is not None:
            return
        nodes = [message.metadata.dst_node_id for message in messages]
        unknown = [n for n in nodes if self._identity.last_identity(n) is None and n not in self._introduced]
        if not unknown:
            return
        query = RecordDict({KEY: ConfigRecord({WHO: True})})
        about = messages[0].metadata
        kind, group = MessageType.TRAIN, about.group_id
        asked = [Message(query, dst_node_id=n, message_type=kind, group_id=group, ttl=about.ttl) for n in unknown]
        for reply in grid.send_and_receive(asked, timeout=about.ttl):
            node = reply.metadata.src_node_id
            if reply.has_error() or node not in unknown:
                reason = reply.error.reason if reply.has_error() else "nobody asked it"
                _logger.log(WARNING, "node %s does not say who it is (does it have memory_mod?): %s", node, reason)
                continue
            try:
                self._introduced[node] = self._identity.identify(node, reply.content)
            except IdentityRefused as error:
                _logger.log(WARNING, "node %s: %s", node, error)

    def _values(self, aggregator: Aggregator, names: Sequence[str | None], share: float) -> Float:
        """p_i as it will be when the round is applied, also of clients that would be new."""
        probabilities, estimator = self._probabilities, aggregator.state.estimator
        if probabilities.known is not None:
            nobody = np.empty(0, dtype=np.int64)
            return np.array([probabilities.values(None, nobody, [name])[0] if name else 1.0 for name in names])
        indices = [aggregator.members.index(name) for name in names]
        new = len(aggregator.identities)
        if None in indices:
            estimator = copy.deepcopy(estimator)
            assert estimator is not None  # noqa: S101 - p is estimated
            if estimator.num_clients <= new:
                probabilities.grow(estimator, new + 1)
            probabilities.forget(estimator, [new])
        clients = np.array([new if i is None else i for i in indices], dtype=np.int64)
        each, where = np.unique(clients, return_inverse=True)
        return probabilities.values(estimator, each, [""] * len(each), share)[where]

    def apply_round(
        self, rule: Rule, aggregator: Aggregator, index: int, replies: Sequence[ClientReply], setting: RoundSetting
    ) -> AppliedRound:
        """Apply one round with the answers that are valid."""
        state, members = aggregator.state, aggregator.members
        seen = state.last_seen[state.last_seen >= 0]
        staleness = (index - seen).astype(np.float64)
        secure = self._secure
        found: list[tuple[ClientReply, Answer, _Ordered]] = []
        left_out: list[LeftOut] = []
        free = np.inf if setting.max_clients is None else setting.max_clients - len(members)
        for reply in replies:
            try:
                ordered, answer = self._read(aggregator, reply)
                new = reply.identity not in members
                if new and free <= 0:
                    raise BadAnswer(f"it is new, and there are max_clients = {setting.max_clients} already")
            except InvalidInput as error:
                left_out.append(LeftOut(reply.node, "bad", str(error), reply.identity))
                continue
            free -= new
            found.append((replace(reply, size=answer.mass), answer, ordered))
        if secure is not None and left_out:  # what is wrong cannot be taken out of the sums
            reason = f"secure aggregation is all or nothing, and the answer of {left_out[0].client} is not valid"
            left_out += [LeftOut(reply.node, "bad", reason, reply.identity) for reply, _, _ in found]
            found, secure = [], None
        aggregator.register([reply for reply, _, _ in found], self._probabilities, setting, believed=True)
        found.sort(key=lambda item: members[item[0].identity])  # the order of all sums
        clients = np.array([members[reply.identity] for reply, _, _ in found], dtype=np.int64)
        orders, answers = [item[2].order for item in found], [item[1] for item in found]
        if secure is None:
            sums = held.gathered(orders, answers, state.federation.num_params)
        else:
            masses = [answer.mass for answer in answers]
            sums = held.delivered(orders, masses, secure.step, secure.change, secure.statistics)
        p = np.array([ordered.p for _, _, ordered in found])
        memory = held.memory_of(state)
        gone = [not answer.remembered and memory.slots[i] >= 0 for i, answer in zip(clients, answers, strict=True)]
        lost = clients[np.array(gone, dtype=bool)]
        _, anew = held.step(rule, state, Round(index, clients, [], probabilities=p), sums, lost, fade=self._fade)
        contributed = set(clients.tolist())
        not_asked = [i for i in setting.not_asked if i not in contributed]
        self._probabilities.observe(state.estimator, clients, not_asked)
        members.last_heard[[*clients, *setting.connected]] = index
        self.numbers = self._numbers(aggregator, answers, lost.size, anew)
        self._ordered, self._secure = {}, None
        return AppliedRound(clients, p, [item[0] for item in found], left_out, staleness, 0, 0)

    def _read(self, aggregator: Aggregator, reply: ClientReply) -> tuple[_Ordered, Answer]:
        ordered = self._ordered.get(reply.node)
        if ordered is None:
            raise BadAnswer("it was given no order")
        length, vectors = aggregator.layout.num_params, self._secure is None
        answer = read_answer(reply.content, ordered.order, length, vectors=vectors)
        members = aggregator.members
        if members.index(reply.identity) != members.index(ordered.identity) or (
            self._probabilities.known is not None and reply.identity != ordered.identity
        ):
            self._introduced[reply.node] = reply.identity
            self._identity.nodes[reply.node] = reply.identity
            raise BadAnswer(f"it answers as {reply.identity} an order for {ordered.identity or 'somebody unknown'}")
        if not aggregator.by_sample and answer.mass != 1.0:
            raise BadAnswer(f"its weight is {answer.mass}, and every client has the weight 1")
        return ordered, answer

    def _numbers(self, aggregator: Aggregator, answers: Sequence[Answer], lost: int, anew: bool) -> dict[str, float]:
        length, secure = aggregator.layout.num_params, self._secure is not None
        sent = [
            2.0 if secure else (answer.step.size + answer.change.size + answer.residual.size) / length
            for answer in answers
        ]
        numbers = {
            "upload_vectors": float(np.mean(sent)) if sent else 0.0,
            "memory_lost": float(lost),
            "memory_anew": float(anew),
            "ghosts": held.memory_of(aggregator.state).ghosts / aggregator.state.federation.total_mass,
        }
        if self._secure is not None:
            numbers["clipped"] = float(self._secure.clipped)
        return numbers

    def forget(self, identity: str) -> None:
        """Lose every trace of who a client was."""
        self._introduced = {node: name for node, name in self._introduced.items() if name != identity}
        self._ordered = {node: ordered for node, ordered in self._ordered.items() if ordered.identity != identity}

    def purge(self, aggregator: Aggregator) -> None:
        """Let nothing stay in the sum of those who were erased: it starts anew, for nobody can take them out of it."""
        held.memory_of(aggregator.state).reset()


def _with(message: Message, order: ConfigRecord) -> Message:
    """Return a message with an order of its own."""
    about = message.metadata
    content = RecordDict({**message.content, KEY: order})
    kind = about.message_type
    return Message(content, dst_node_id=about.dst_node_id, message_type=kind, group_id=about.group_id, ttl=about.ttl)
