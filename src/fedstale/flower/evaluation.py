"""Rounds of evaluation at the clients: whom to ask for it, and the mean of what they report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from logging import INFO, WARNING, getLogger

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid

from ..checks import printable
from ..rules import Rule
from .client_metrics import aggregate_metrics
from .options import AggregateMetrics, Options
from .replies import MAX_REASON, SentMessages
from .saving import SavedStrategy

_logger = getLogger("flwr")
_TIMEOUT = 3600.0
"""Seconds of a round where a loop that is not ours does not say: Flower's default."""


class EvaluatedStrategy(SavedStrategy):
    """A strategy whose clients evaluate the model; an evaluation that an earlier process had is not done again.

    Parameters
    ----------
    rule, options
        As for `SavedStrategy`.
    """

    def __init__(self, rule: Rule, options: Options) -> None:
        super().__init__(rule, options)
        self.timeout: float | None = None
        """Seconds that a round waits for its replies, where that is known."""
        self.sent_messages = SentMessages(0, [])
        """The messages that are to be answered."""

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Select nodes for the evaluation of the model."""
        self.settle(arrays)
        index = self._rounds_before + server_round
        if not self.asking.evaluate.active or self._evaluated_before(index):
            return []
        if index == self.rounds_resumed:
            arrays = self.current_arrays()
        nodes = self.asking.nodes(grid, self.asking.evaluate, self.aggregator, self._patience)
        selected = self.asking.select_for_evaluation(nodes, index)
        _logger.log(INFO, "configure_evaluate: Sampled %s nodes (out of %s)", len(selected), len(nodes))
        messages = self._messages(server_round, arrays, config, selected, MessageType.EVALUATE)
        self.sent_messages = SentMessages(server_round, messages)
        return messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Average the metrics of the nodes that evaluated; a failed node is missing from the average."""
        index = self._rounds_before + server_round
        if self._evaluated_before(index):
            return self.history.get("evaluate", index)
        contents: dict[int, RecordDict] = {}
        for node, reply in self.sent_messages.match(replies):
            if node is None or not reply.has_content() or node in contents:
                reason = reply.error.reason if reply.has_error() else "it answers nothing that was asked"
                text = "round %d: evaluation of node %s left out: %s"
                _logger.log(WARNING, text, server_round, node, printable(str(reason), MAX_REASON))
                continue
            contents[node] = reply.content
        found = self._aggregate_metrics([contents[node] for node in sorted(contents)], self.evaluate_metrics_aggr_fn)
        self.history.add("evaluate", index, found)
        return found

    @property
    def _patience(self) -> float:
        """Seconds that a round waits for its replies."""
        return _TIMEOUT if self.timeout is None else self.timeout

    def _evaluated_before(self, index: int) -> bool:
        """Whether clients evaluated this round in an earlier process, as far as it came."""
        last = self.rounds_resumed
        return index < last or (index == last and self.history.has("evaluate", index))

    def _messages(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, nodes: Iterable[int], kind: str
    ) -> list[Message]:
        """Write the messages of a round, each with the model."""
        config["server-round"] = server_round
        record = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        group, ttl = str(server_round), self.timeout
        if kind == MessageType.TRAIN and self.options["late_for"]:  # longer, until a late reply is of no use either
            ttl = (1 + self.options["late_for"]) * self._patience
        return [Message(record, dst_node_id=n, message_type=kind, group_id=group, ttl=ttl) for n in nodes]

    def _aggregate_metrics(self, contents: Sequence[RecordDict], aggregate: AggregateMetrics) -> MetricRecord | None:
        """Combine what clients report, by the function that the user gave or by Flower's."""
        return aggregate_metrics(contents, aggregate, self.weighted_by_key, self.identity)
