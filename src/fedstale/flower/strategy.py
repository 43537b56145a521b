"""Flower's Strategy around any rule of the library: Algorithm 1 on a real federation.

Clients stay as they are for FedAvg: they receive a model, train it and send it back. The server computes
Δ_i = w_t − w_i, lets the rule combine what arrived in time, steps, counts who came, and writes a checkpoint.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from logging import INFO, WARNING, getLogger
from pathlib import Path
from typing import Any, Self, Unpack

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from ..checks import fail, printable
from ..interrupts import postponed
from ..rules import Rule
from . import checkpoint_file
from .account import Account
from .client_metrics import aggregate_metrics, is_own
from .forgetting import erase, forget_overdue
from .identity import NO_IDENTITY, REMEDIES
from .journal import per_client, round_metrics, scalars, to_metrics
from .loop import run_rounds
from .options import AggregateMetrics, Options, checked
from .refusals import no_secure_aggregation, refuse_central_privacy
from .replies import MAX_REASON, ClientReply, LeftOut, SentMessages, read_reply, sort_replies
from .round_facts import AppliedRound, LateUpdate
from .saving import SavedStrategy
from .strategy_config import StrategyConfig

_logger = getLogger("flwr")
_TIMEOUT = 3600.0
"""Seconds of a round where a loop that is not ours does not say: Flower's default."""
_LEFT_OUT_KEPT = 10_000
"""How many replies that were left out a strategy can tell of."""


class RuleStrategy(SavedStrategy):
    """A Flower strategy that aggregates by a rule of the library.

    Parameters
    ----------
    rule
        Any `fedstale.Rule` that leaves local training as it is: also `ServerAdam(FedStale())`, `MIFA()`, …
    fraction_train, fraction_evaluate, min_train_nodes, min_evaluate_nodes, min_available_nodes
        Whom to ask, as in Flower's FedAvg. The first round waits for `min_available_nodes`; later rounds wait
        at most `max_wait` seconds and go on with who is there, be it nobody.
    weighted_by_key, arrayrecord_key, configrecord_key, train_metrics_aggr_fn, evaluate_metrics_aggr_fn
        As in Flower's FedAvg.
    probabilities
        p_i, the probability that client i contributes to a round: "fedau" (estimated, the default), "beta",
        "forgetting", one number, a mapping {identity: p_i}, or an `Estimator`.
    weights
        α_i, what the model is for: "sample" (default, as FedAvg: a client weighs by its `weighted_by_key`) or "client"
        (every client weighs the same).
    max_examples_ratio
        With "sample", a client counts with at most so many times the median of all clients' examples, and with at
        most what all the others have together, from four clients on: a client may claim any number. None: any number
        is believed.
    max_norm_ratio
        An update, and a change of running statistics, is shortened to at most so many times the median length of what
        the other clients sent last, from three others on. None: any length.
    halve_rows_every
        A remembered update that was not renewed for so many rounds is halved, and again after as many. None: never.
    late_for
        How long a reply may come after its round, in rounds of the full `timeout`: it is put into the client's row of
        the memory when it comes, and its node is not asked again before. One model is kept for each round of which
        replies are missing. 0: late replies are lost, and nodes are asked again at once.
    proximal_mu
        Sent to clients as `proximal-mu` in the config of training messages, as by Flower's FedProx.
    memory
        Where stale updates live: "ram", "ram:bfloat16", "disk:FOLDER", "disk:FOLDER:float16", …; "clients": each client
        keeps its own, with `ClientApp(mods=[fedstale.flower.memory_mod])`, and the server has their sum.
    secure_aggregation
        With `memory="clients"`: a `flwr.server.workflow.SecAggPlusWorkflow`, through which the server sees sums only.
    identity
        How clients are recognised: "auto", "metric:NAME", "key" or "node"; see `Identity`.
    selection
        Instead of `fraction_train`: a number of nodes, or a `fedstale.participation.Selection`. Default: the
        rule's own, where it has one (FedLaAvg).
    averaged_buffers
        Patterns of the names of floating-point arrays that are averaged instead of going through the rule.
    num_clients
        N, where it is known in advance; otherwise the clients that ever answered, and connected nodes that were not
        asked yet.
    max_clients
        How many clients may become known, each with a row in the memory; None: any number. Set it where clients
        say themselves who they are.
    forget_after
        Rounds after which a client that was not heard of (it neither contributed nor was seen connected) leaves the
        objective; coming back it is new. "auto" (default): 50 for clients known by a node id only, which a device
        does not get twice, never for others; None: never.
    robust
        How what is new in a round is combined: "median", "trimmed:0.2" or "norms:3", see `fedstale.rules.Robust`. None
        (default): by the rule alone, without bias.
    clip_norm, max_weight
        The largest norm of an update, and the largest 1/p: see `fedstale.rules.Guarded`; None: any.
    max_wait
        Seconds to wait for nodes in later rounds; None waits for ever.
    checkpoint
        A folder: after every round everything is saved there. Give an absolute path: Flower runs the app elsewhere.
    checkpoint_every
        Save after every so many rounds, and at the end, instead of after each: a crash loses at most so many.
    resume
        What to do where the folder holds a checkpoint already: "never" (default) refuses, "auto" goes on after its
        last round. With "auto", running the same app again is all that is needed after a crash.
    store
        A folder of the fedstale store, or a `Store`: rounds appear on the board.
    seed
        Seed of the selection.
    """

    def __init__(self, rule: Rule, **options: Unpack[Options]) -> None:
        super().__init__(rule, checked(type(self).__name__, options))
        p = self.probabilities.same_for_all
        if p is not None and p < 1.0 and self.options["num_clients"] is None:
            what = f"with probabilities={p} a step is N p times too large until everybody has come once: give N"
            raise fail("num_clients", None, what)
        self.left_out: deque[tuple[int, LeftOut]] = deque(maxlen=_LEFT_OUT_KEPT)
        """The last replies that were left out, with their rounds."""
        self.last_round: tuple[AppliedRound, dict[str, float]] | None = None
        """What the last round did, and its numbers."""
        self.account: Account | None = None
        """Who was asked in the last round, and what became of each."""
        self.timeout: float | None = None
        """Seconds that a round waits for its replies, where that is known."""
        self._secure_replies: list[Message] = []
        self._sent_messages = SentMessages(0, [])
        self._store_warned = False

    @classmethod
    def resume(cls, path: str | Path, *, rule: Rule | None = None, **changes: Unpack[Options]) -> Self:
        """Return the strategy that wrote this checkpoint, ready to go on after its last round.

        Call `start` as for a new run: `num_rounds` counts from the beginning of the first run, and the model
        comes from the checkpoint.

        Parameters
        ----------
        path
            The checkpoint folder.
        rule
            The rule, where it holds objects that could not be saved (a callable β, a wrapped rule).
        **changes
            Options to change. Functions and objects are not saved: give them again.
        """
        if not cls.__init__.__module__.startswith(str(__package__)):
            what = f"{cls.__name__} has an __init__ of its own, which a checkpoint cannot call"
            raise fail("resume", str(path), f'{what}: use {cls.__name__}(…, checkpoint=path, resume="auto")')
        folder = Path(path).absolute()
        aggregator, facts, pending_log = checkpoint_file.load(folder)
        try:
            saved = StrategyConfig(facts)
            options: Options = {**saved.options(changes), "checkpoint": folder}  # type: ignore[typeddict-item]
            if "store" not in changes and isinstance(options.get("store"), str):
                options["store"] = folder / str(options["store"])
            strategy = cls.__new__(cls)
            RuleStrategy.__init__(strategy, saved.rule(rule), **options)
        except BaseException:
            aggregator.state.close()
            raise
        strategy._take_up(aggregator, saved, pending_log)
        return strategy

    def summary(self) -> None:
        """Log the strategy's configuration."""
        _logger.log(INFO, "\t├──> fedstale:")
        _logger.log(INFO, "\t│\t├──Rule: %s", self.rule)
        for name in ("probabilities", "weights", "memory", "identity"):
            _logger.log(INFO, "\t│\t├──%s: %s", name.capitalize(), self.options[name])
        _logger.log(INFO, "\t│\t└──Checkpoint: %s", self.checkpoint or "none")
        super().summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Select among the connected nodes and write them the round's messages."""
        refuse_central_privacy()
        if server_round <= self._rounds_configured:  # the loop of somebody else has begun again
            self.begin_start()
        self._rounds_configured = server_round
        index = self._rounds_before + server_round
        aggregator = self.prepare(arrays)
        if self.held is not None:
            self.held.prepare(self._bounded, aggregator)
        if index <= self._rounds_resumed:
            _logger.log(INFO, "configure_train: round %s was done before the restart", server_round)
            return []
        if self.journal.unused and not self._store_warned:
            self._store_warned = True
            text = "store= is not written: %s runs the rounds by a start() of its own, which knows nothing of it"
            _logger.log(WARNING, text, type(self).__name__)
        self.settle(arrays)
        if self._send_saved:  # whatever a loop that went through the earlier rounds again has made of it
            arrays, self._send_saved = self.current_arrays(), False
        self._use(arrays)
        nodes = self.asking.nodes(grid, self.asking.train, aggregator, self._timeout)
        self.identity.warn(nodes)
        selected = self.asking.select_for_training(nodes, index, aggregator)
        _logger.log(INFO, "configure_train: Sampled %s nodes (out of %s)", len(selected), len(nodes))
        if self.asking.busy:
            text = "configure_train: %s nodes work on a message of an earlier round and are not asked"
            _logger.log(INFO, text, len(self.asking.busy))
        if self.options["proximal_mu"] is not None:
            config["proximal-mu"] = float(self.options["proximal_mu"])
        messages = self._messages(server_round, arrays, config, selected, MessageType.TRAIN)
        if self.held is not None:
            share = self.asking.train.inclusion(len(nodes))
            share = 1.0 if share is None else share
            messages = self.held.write_orders(grid, self._bounded, aggregator, index - 1, messages, share)
        self._sent_messages = SentMessages(server_round, messages)
        if self.held is not None and self.options["secure_aggregation"] is not None:
            # Flower's protocol has messages of its own, and takes a round from here to the sums.
            self._secure_replies = self.held.run_secure(grid, aggregator, messages, server_round, self.timeout)
            return []
        return messages

    @postponed("round")
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Apply the round with the valid replies, be there none; return the new model and the numbers.

        The round is saved when it is known which model is sent next (`settle`).
        """
        if not self.asking.train.active:
            return None, None
        index = self._rounds_before + server_round
        if index <= self._rounds_resumed:
            return self._returned, self.history.get("train", index)
        if self.aggregator is None or self._sent_messages.round != server_round:
            raise fail("server_round", server_round, "configure_train must be called first, in the same round")
        if self.options["secure_aggregation"] is not None:
            replies, self._secure_replies = self._secure_replies, []
        key, sent, replies = self.arrayrecord_key, self._sent_messages, list(replies)
        whole = self.held is not None or is_own(self.train_metrics_aggr_fn)
        accepted, left_out = sort_replies(replies, sent, self.identity, key, self.weighted_by_key, whole=whole)
        self._refuse_strangers(accepted, left_out)
        late, unused = self._take_up_late(index)
        left_out += unused
        self._note_unanswered(index, replies)
        del replies  # large models need not wait in memory until the round is done
        setting = self.asking.setting(index, self._sent_messages.nodes, self.aggregator, self._rounds_resumed)
        if self.held is None:
            applied = self.aggregator.apply_round(self._bounded, index - 1, accepted, self.probabilities, setting)
        else:
            applied = self.held.apply_round(self._bounded, self.aggregator, index - 1, accepted, setting)
        left_out += applied.left_out
        for reply in applied.replies:
            self.identity.confirm(reply.node, reply.identity)
        for bad in left_out:
            who = f"{bad.node} ({bad.client})" if bad.client else f"{bad.node}"
            _logger.log(WARNING, "round %d: reply of node %s left out: %s", server_round, who, bad.reason)
            self.left_out.append((server_round, bad))
        contributed = [reply.node for reply in applied.replies]
        asked, connected_count = self._sent_messages.nodes, len(self.asking.connected)
        self.account = Account.make(server_round, connected_count, asked, contributed, left_out)
        _logger.log(INFO, "aggregate_train: %s of %s asked contributed", len(contributed), len(self.account.asked))
        gone = forget_overdue(self, index)
        clients = per_client(self.aggregator, self.probabilities)
        busy = len(self.asking.late.busy)
        numbers = round_metrics(self.aggregator, applied, self.account, clients, len(gone), late, busy)
        numbers |= {} if self.held is None else self.held.numbers
        self.last_round = applied, numbers
        self._sent_messages = SentMessages(0, [])
        self._sent_arrays = self._returned = self.aggregator.arrays()
        metrics = self._aggregate_metrics([reply.content for reply in applied.replies], self.train_metrics_aggr_fn)
        self.pending_log = {"numbers": scalars("train/", metrics) | numbers, "participants": applied.clients.tolist()}
        self._unsaved = True
        record = to_metrics(metrics, numbers)
        self.history.add("train", index, record)
        return self._returned, record

    @property
    def sees_replies_again(self) -> bool:
        """Whether a subclass is handed the replies of a round and may look at them once more."""
        return type(self).aggregate_train is not RuleStrategy.aggregate_train

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Select nodes for the evaluation of the model."""
        self.settle(arrays)
        index = self._rounds_before + server_round
        if not self.asking.evaluate.active or self._evaluated_before(index):
            return []
        if index == self._rounds_resumed:
            arrays = self.current_arrays()
        nodes = self.asking.nodes(grid, self.asking.evaluate, self.aggregator, self._timeout)
        selected = self.asking.select_for_evaluation(nodes, index)
        _logger.log(INFO, "configure_evaluate: Sampled %s nodes (out of %s)", len(selected), len(nodes))
        messages = self._messages(server_round, arrays, config, selected, MessageType.EVALUATE)
        self._sent_messages = SentMessages(server_round, messages)
        return messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Average the metrics of the nodes that evaluated; a failed node is missing from the average."""
        index = self._rounds_before + server_round
        if self._evaluated_before(index):
            return self.history.get("evaluate", index)
        contents: dict[int, RecordDict] = {}
        for node, reply in self._sent_messages.match(replies):
            if node is None or not reply.has_content() or node in contents:
                reason = reply.error.reason if reply.has_error() else "it answers nothing that was asked"
                text = "round %d: evaluation of node %s left out: %s"
                _logger.log(WARNING, text, server_round, node, printable(str(reason), MAX_REASON))
                continue
            contents[node] = reply.content
        found = self._aggregate_metrics([contents[node] for node in sorted(contents)], self.evaluate_metrics_aggr_fn)
        self.history.add("evaluate", index, found)
        return found

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float | Callable[[int], float] = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the federation for `num_rounds` rounds; a resumed one goes on after its last round.

        Called again on the same strategy, it runs `num_rounds` more from the model that is given, as Flower's does,
        with what is known of the clients by then.

        Parameters
        ----------
        grid, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate_fn
            As in Flower's `Strategy.start`; `timeout` may be a function from the round to seconds. Rounds that a
            resumed run has already count in `num_rounds`, and the result holds their metrics; its model comes from the
            checkpoint, and `initial_arrays` serves only to check that the model is of the same kind.
        """
        return run_rounds(
            self,
            grid,
            initial_arrays,
            num_rounds,
            timeout,
            ConfigRecord() if train_config is None else train_config,
            ConfigRecord() if evaluate_config is None else evaluate_config,
            evaluate_fn,
        )

    def forget(self, client: str | int) -> None:
        """Erase a client: it leaves the objective, and nothing of it stays behind.

        Its row, identity and statistics are removed from memory, from the checkpoint (which is written anew, and rows
        that are nobody's any more are overwritten) and from the run of the store. What it did to the model stays, and
        so do sums over all clients: β's statistics, the metrics of past rounds. Should it come back, it is new.

        Parameters
        ----------
        client
            Its identity such as "client-id:7", or what it reports: 7.
        """
        erase(self, client)

    def _take_up_late(self, index: int) -> tuple[int, list[LeftOut]]:
        """Put what arrived after its round into the memory; return how many such replies there were, and the bad ones.

        A rule without a memory that could hold them has only their number.
        """
        assert self.aggregator is not None  # noqa: S101 - the round was configured
        late, left_out, before = self.asking.late.take(), list[LeftOut](), len(self.aggregator.members)
        for unanswered, message, sent in late:
            reply = read_reply(unanswered.node, message, self.identity, self.arrayrecord_key, self.weighted_by_key)
            if isinstance(reply, LeftOut):
                left_out.append(replace(reply, kind="late"))
                continue
            if sent is None or not self._bounded.takes_late:
                continue
            setting = self.asking.setting(index, self._sent_messages.nodes, self.aggregator, self._rounds_resumed)
            update, joined = LateUpdate(reply, unanswered.round, sent), len(self.aggregator.members) - before
            refused = self.aggregator.put_late(self._bounded, index - 1, update, self.probabilities, setting, joined)
            if refused is None:
                self.identity.confirm(reply.node, reply.identity)
            else:
                left_out.append(refused)
        return len(late) - len(left_out), left_out

    def _note_unanswered(self, index: int, replies: Sequence[Message]) -> None:
        """Take note of who has not answered, with the model that was sent."""
        assert self.aggregator is not None  # noqa: S101 - the round was configured
        if self.options["late_for"]:
            keep = self._bounded.takes_late and len(replies) < len(self._sent_messages.nodes)
            model = np.array(self.aggregator.layout.as_sent(self.aggregator.model)) if keep else None
            self.asking.late.note(self._sent_messages, replies, index - 1, model)

    def _refuse_strangers(self, accepted: Sequence[ClientReply], left_out: Sequence[LeftOut]) -> None:
        """Refuse to go on where nobody can be found again and everything is to be saved."""
        if self.aggregator is None or self.aggregator.identities or accepted or not self.identity.must_last:
            return
        nameless = [reply for reply in left_out if reply.reason == NO_IDENTITY]
        if nameless:
            what = f"a checkpoint needs clients that are found again, and {len(nameless)} replies name none. {REMEDIES}"
            raise fail("identity", self.identity.mode, what)

    @property
    def _timeout(self) -> float:
        return _TIMEOUT if self.timeout is None else self.timeout

    def _evaluated_before(self, index: int) -> bool:
        """Whether clients evaluated this round in an earlier process, as far as it came."""
        last = self._rounds_resumed
        return index < last or (index == last and self.history.has("evaluate", index))

    def _messages(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, nodes: Iterable[int], kind: str
    ) -> list[Message]:
        config["server-round"] = server_round
        record = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        group, ttl = str(server_round), self.timeout
        if kind == MessageType.TRAIN and self.options["late_for"]:  # longer, until a late reply is of no use either
            ttl = (1 + self.options["late_for"]) * self._timeout
        return [Message(record, dst_node_id=n, message_type=kind, group_id=group, ttl=ttl) for n in nodes]

    def _aggregate_metrics(self, contents: Sequence[RecordDict], aggregate: AggregateMetrics) -> MetricRecord | None:
        return aggregate_metrics(contents, aggregate, self.weighted_by_key, self.identity)

    def initialize_parameters(self, *_: Any, **__: Any) -> Any:
        """Refuse Flower's legacy workflows, SecAgg+ among them."""
        raise no_secure_aggregation(self)

    configure_fit = aggregate_fit = initialize_parameters
