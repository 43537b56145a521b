"""Flower's Strategy around any rule of the library: Algorithm 1 on a real federation.

Clients stay as they are for FedAvg: they receive a model, train it and send it back. The server computes
Δ_i = w_t − w_i, lets the rule combine what arrived in time, steps, counts who came, and writes a checkpoint.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from logging import INFO, WARNING, getLogger
from pathlib import Path
from typing import Any, Self, Unpack

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.exception import InconsistentMessageReplies
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    Result,
)
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords, validate_message_reply_consistency

from .. import memory as memories
from ..checks import fail, number, positive_int, printable
from ..durable import Lock, relative
from ..interrupts import postponed
from ..randomness import generator
from ..rules import Guarded, Rule, guard
from .account import Account
from .aggregator import Aggregator, AppliedRound, RoundSetting
from .history import History
from .identity import NO_IDENTITY, REMEDIES, Identity
from .journal import Journal, per_client, round_metrics, scalars, to_metrics
from .loop import run_rounds
from .nodes import Selector, check_wait, connected
from .options import DEFAULTS, AggregateMetrics, Options
from .probabilities import Probabilities
from .replies import MAX_REASON, ClientReply, LeftOut, SentMessages, sort_replies
from .strategy_config import StrategyConfig, check_memory, holds_checkpoint

_logger = getLogger("flwr")
_FORGET_NODES_AFTER = 50
"""Rounds after which a client known by a node id only is taken for gone; FedAU's cutoff is the same number."""
_NO_SECAGG = (
    "cannot be run by Flower's legacy workflows such as SecAgg+: the server needs each client's update in the clear, "
    "to remember it. Use start(), or FedAvg with secure aggregation"
)
_CENTRAL_PRIVACY = (
    DifferentialPrivacyServerSideFixedClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyClientSideAdaptiveClipping,
)
_NO_CENTRAL_PRIVACY = (
    "does not hold what it promises around this strategy: its noise is meant for a mean, in which a client moves the "
    "model by at most clipping_norm / n, while here a rare client counts 1/p times and is remembered in later rounds. "
    "Use it with FedAvg, or let clients add noise themselves (Flower's LocalDpMod)"
)
_LONGEST_NAME, _MOST_METRICS, _MOST_NUMBERS = 100, 1000, 100_000
"""Characters of a metric's name, metrics of a round, and numbers in one of them that is a list."""
_LEFT_OUT_KEPT = 10_000
"""How many replies that were left out a strategy can tell of."""


class RuleStrategy(FedAvg):
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
        With "sample", a client counts with at most so many times the median of all clients' examples, from four
        clients on: a client may claim any number. None: any number is believed.
    max_norm_ratio
        An update, and a change of running statistics, is shortened to at most so many times the median length of what
        the other clients sent last, from three others on. None: any length.
    halve_rows_every
        A remembered update that was not renewed for so many rounds is halved, and again after as many. None: never.
    proximal_mu
        Sent to clients as `proximal-mu` in the config of training messages, as by Flower's FedProx.
    memory
        Where stale updates live: "ram", "ram:bfloat16", "disk:FOLDER", "disk:FOLDER:float16", …
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
    clip_norm, max_weight
        The largest norm of an update, and the largest 1/p: see `fedstale.rules.Guarded`; None: any.
    max_wait
        Seconds to wait for nodes in later rounds; None waits for ever.
    checkpoint
        A folder: after every round everything is saved there. Give an absolute path: Flower runs the app elsewhere.
    resume
        What to do where the folder holds a checkpoint already: "never" (default) refuses, "auto" goes on after its
        last round. With "auto", running the same app again is all that is needed after a crash.
    store
        A folder of the fedstale store, or a `Store`: rounds appear on the board.
    seed
        Seed of the selection.
    """

    def __init__(self, rule: Rule, **options: Unpack[Options]) -> None:
        for name in options:
            if name not in DEFAULTS:
                raise TypeError(f"{type(self).__name__}() got an unexpected keyword argument {name!r}")
        settings: Options = {**DEFAULTS, **options}
        super().__init__(
            fraction_train=settings["fraction_train"],
            fraction_evaluate=settings["fraction_evaluate"],
            min_train_nodes=settings["min_train_nodes"],
            min_evaluate_nodes=settings["min_evaluate_nodes"],
            min_available_nodes=positive_int("min_available_nodes", settings["min_available_nodes"], 0),
            weighted_by_key=settings["weighted_by_key"],
            arrayrecord_key=settings["arrayrecord_key"],
            configrecord_key=settings["configrecord_key"],
            train_metrics_aggr_fn=settings["train_metrics_aggr_fn"],
            evaluate_metrics_aggr_fn=settings["evaluate_metrics_aggr_fn"],
        )
        if not isinstance(rule, Rule):
            raise fail("rule", rule, "must be a rule of the library such as fedstale.FedStale()")
        if settings["weights"] not in ("client", "sample"):
            raise fail("weights", settings["weights"], 'must be "client" or "sample"')
        if settings["resume"] not in ("never", "auto"):
            raise fail("resume", settings["resume"], 'must be "never" or "auto"')
        if settings["resume"] == "auto" and settings["checkpoint"] is None:
            raise fail("checkpoint", None, 'resume="auto" needs the folder of the checkpoint')
        memories.parse(settings["memory"])
        for name in ("num_clients", "max_clients"):
            if settings[name] is not None:  # type: ignore[literal-required]
                positive_int(name, settings[name])  # type: ignore[literal-required]
        if settings["forget_after"] != "auto" and settings["forget_after"] is not None:
            positive_int("forget_after", settings["forget_after"])
        for name in ("max_norm_ratio", "max_examples_ratio"):
            if settings[name] is not None:  # type: ignore[literal-required]
                number(name, settings[name], 1.0)  # type: ignore[literal-required]
        if settings["halve_rows_every"] is not None:
            positive_int("halve_rows_every", settings["halve_rows_every"])
        if isinstance(rule, Guarded):  # its bounds are options here, and saved as such
            settings["clip_norm"] = rule.clip_norm if settings["clip_norm"] is None else settings["clip_norm"]
            settings["max_weight"] = rule.max_weight if settings["max_weight"] is None else settings["max_weight"]
            rule = rule.rule
        self.rule = rule
        self._bounded = guard(rule, settings["clip_norm"], settings["max_weight"])
        self.options = settings
        self.identity = Identity(settings["identity"], must_last=settings["checkpoint"] is not None)
        self.probabilities = Probabilities(settings["probabilities"])
        self._num_clients = max(settings["num_clients"] or 0, len(self.probabilities.known or ()))
        if (p := self.probabilities.same_for_all) is not None and p < 1.0 and settings["num_clients"] is None:
            what = f"with probabilities={p} a step is N p times too large until everybody has come once: give N"
            raise fail("num_clients", None, what)
        seed, selection = settings["seed"], settings["selection"]
        selection = rule.selection() if selection is None else selection
        self.train_nodes = Selector(self.fraction_train, self.min_train_nodes, selection, seed, "train")
        self.evaluate_nodes = Selector(self.fraction_evaluate, self.min_evaluate_nodes, None, seed, "evaluate")
        self.max_wait = check_wait(settings["max_wait"])
        self.checkpoint = None if settings["checkpoint"] is None else Path(settings["checkpoint"]).absolute()
        self.journal = Journal(settings["store"])
        self.aggregator: Aggregator | None = None
        self.left_out: deque[tuple[int, LeftOut]] = deque(maxlen=_LEFT_OUT_KEPT)
        """The last replies that were left out, with their rounds."""
        self.last_round: tuple[AppliedRound, dict[str, float]] | None = None
        """What the last round did, and its numbers."""
        self.account: Account | None = None
        """Who was asked in the last round, and what became of each."""
        self.pending_log: dict[str, Any] = {}
        """What is to be written to the store about the last round: a process may die after saving, before that."""
        self.ttl: float | None = None
        self.store_run: str | None = None
        self.history = History(self.checkpoint)
        self._sent_messages = SentMessages(0, [])
        self._connected_nodes: list[int] = []
        self._patience = self.max_wait
        self._asked_before: set[int] = set()
        self._waited = False
        # The model that the next round starts from, as the last `aggregate_train` returned it or as it was changed
        # since; and whether the round that made it is still to be saved.
        self._sent_arrays: ArrayRecord | None = None
        self._returned: ArrayRecord | None = None
        self._unsaved = False
        # Rounds of earlier calls of `start`, of this one, and rounds that were done before this process.
        self._rounds_before = 0
        self._rounds_configured = 0
        self._rounds_resumed = 0
        self._send_saved = False
        self._store_warned = False
        self._release: weakref.finalize[[], RuleStrategy] | None = None

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
        aggregator, facts, pending_log = Aggregator.load(folder)
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

    def _take_up(self, aggregator: Aggregator, saved: StrategyConfig, pending_log: dict[str, Any]) -> None:
        """Go on with what a checkpoint holds."""
        self.aggregator = aggregator
        self.store_run = saved.store_run
        self.identity.claims.update(saved.facts["claims"])
        self.identity.nodes.update({int(node): name for node, name in saved.facts["nodes"].items()})
        self.pending_log = pending_log
        self._rounds_resumed = aggregator.state.round
        self._send_saved = True
        self.history.load(self._rounds_resumed)
        self._sent_arrays = aggregator.arrays()
        self._returned = aggregator.returned or self._sent_arrays

    def _load(self, folder: Path) -> Aggregator:
        """Go on with the checkpoint in the folder, which must be of a strategy like this one."""
        aggregator, facts, pending_log = Aggregator.load(folder)
        try:
            saved = StrategyConfig(facts)
            saved.rule(self.rule)
            saved.options({name: value for name, value in self.options.items() if name != "memory"})
            check_memory(self.options["memory"], aggregator.state.where)
        except BaseException:
            aggregator.state.close()
            raise
        self._take_up(aggregator, saved, pending_log)
        return aggregator

    def config_facts(self) -> dict[str, Any]:
        """Return what a checkpoint says of the strategy, as JSON values."""
        options = dict(self.options)
        if self.checkpoint is not None and isinstance(options["store"], (str, Path)):
            options["store"] = relative(Path(options["store"]), self.checkpoint)  # so that both can be copied or moved
        return {
            **StrategyConfig.describe(self.rule, options, self.store_run).facts,
            "claims": dict(self.identity.claims),
        }

    def summary(self) -> None:
        """Log the strategy's configuration."""
        _logger.log(INFO, "\t├──> fedstale:")
        _logger.log(INFO, "\t│\t├──Rule: %s", self.rule)
        for name in ("probabilities", "weights", "memory", "identity"):
            _logger.log(INFO, "\t│\t├──%s: %s", name.capitalize(), self.options[name])
        _logger.log(INFO, "\t│\t└──Checkpoint: %s", self.checkpoint or "none")
        super().summary()

    def prepare(self, arrays: ArrayRecord) -> Aggregator:
        """Start the federation with this model, or go on with the checkpoint where that is asked for."""
        if self.aggregator is None:
            self.lock()
            if self.checkpoint is not None and holds_checkpoint(self.checkpoint):
                if self.options["resume"] == "auto":
                    return self._load(self.checkpoint)
                allowed = f'holds a checkpoint already: give {type(self).__name__}(…, resume="auto") to go on with it, '
                raise fail("checkpoint", str(self.checkpoint), allowed + "or choose another folder")
            self.aggregator = Aggregator.start(
                self._bounded,
                arrays,
                self.probabilities,
                weights=self.options["weights"],
                memory=self.options["memory"],
                averaged_buffers=self.options["averaged_buffers"],
            )
            self.history.clear()
            self._sent_arrays = self._returned = arrays
        return self.aggregator

    def lock(self) -> None:
        """Keep a second server away from the checkpoint, until `unlock` or the end of this strategy."""
        if self.checkpoint is not None and (self._release is None or not self._release.alive):
            lock = Lock(self.checkpoint / "lock", f"checkpoint {self.checkpoint}")
            self._release = weakref.finalize(self, lock.release)

    def unlock(self) -> None:
        """Let others have the checkpoint."""
        if self._release is not None:
            self._release()

    def begin_start(self) -> int:
        """Take note that a loop of rounds begins, which counts from 1; return how many rounds there were before it."""
        self._rounds_before += self._rounds_configured
        self._rounds_configured = 0
        if self.aggregator is not None and self.aggregator.state.round <= self._rounds_before:
            self._send_saved = False  # the loop brings its own model
        return self._rounds_before

    def end_start(self, num_rounds: int) -> None:
        """Take note of how many rounds a loop had, with those of an earlier process."""
        self._rounds_configured = num_rounds

    def current_arrays(self) -> ArrayRecord:
        """Return the model as it stands."""
        if self.aggregator is None or self._sent_arrays is None:
            raise fail("strategy", self, "has no model before start or resume")
        return self._sent_arrays

    def settle(self, arrays: ArrayRecord) -> None:
        """Save a round with the model that is sent next, which a subclass may have changed after `aggregate_train`."""
        if self.aggregator is None or not self._unsaved:
            return
        self._use(arrays)
        self._unsaved = False
        if self.checkpoint is not None:
            self._save()

    def _save(self) -> None:
        assert self.aggregator is not None  # noqa: S101 - callers have them
        assert self.checkpoint is not None  # noqa: S101
        changed = self._returned if self._returned is not self._sent_arrays else None
        nodes = {str(node): self.identity.nodes[node] for node in self._connected_nodes if node in self.identity.nodes}
        facts = {**self.config_facts(), "claims": self.identity.claims, "nodes": nodes}
        self.aggregator.save(self.checkpoint, facts, self.pending_log, changed)

    def _use(self, arrays: ArrayRecord) -> None:
        """Let the next round start from this model."""
        assert self.aggregator is not None  # noqa: S101 - there is one after `prepare`
        # A model of narrow numbers is kept wider than it is sent: it stays where nobody has changed it.
        if arrays is not self._sent_arrays and not _same(arrays, self._sent_arrays):
            self.aggregator.set_model(arrays)
            self._sent_arrays = arrays

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Select among the connected nodes and write them the round's messages."""
        _refuse_central_privacy()
        if server_round <= self._rounds_configured:  # the loop of somebody else has begun again
            self.begin_start()
        self._rounds_configured = server_round
        index = self._rounds_before + server_round
        self.prepare(arrays)
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
        nodes = self._nodes(grid, self.train_nodes)
        self.identity.warn(nodes)
        self._connected_nodes = nodes
        selected = self.train_nodes.select(nodes, index, self._last_seen(nodes)) if nodes else []
        _logger.log(INFO, "configure_train: Sampled %s nodes (out of %s)", len(selected), len(nodes))
        if self.options["proximal_mu"] is not None:
            config["proximal-mu"] = float(self.options["proximal_mu"])
        messages = self._messages(server_round, arrays, config, selected, MessageType.TRAIN)
        self._sent_messages = SentMessages(server_round, messages)
        return messages

    @postponed("round")
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Apply the round with the valid replies, be there none; return the new model and the numbers.

        The round is saved when it is known which model is sent next (`settle`).
        """
        if not self.train_nodes.active:
            return None, None
        index = self._rounds_before + server_round
        if index <= self._rounds_resumed:
            return self._returned, self.history.get("train", index)
        if self.aggregator is None or self._sent_messages.round != server_round:
            raise fail("server_round", server_round, "configure_train must be called first, in the same round")
        key = self.arrayrecord_key
        accepted, left_out = sort_replies(replies, self._sent_messages, self.identity, key, self.weighted_by_key)
        self._refuse_strangers(accepted, left_out)
        applied = self.aggregator.apply_round(
            self._bounded, index - 1, accepted, self.probabilities, self._round_setting(index)
        )
        left_out += applied.left_out
        for reply in applied.replies:
            self.identity.confirm(reply.node, reply.identity)
        for bad in left_out:
            who = f"{bad.node} ({bad.client})" if bad.client else f"{bad.node}"
            _logger.log(WARNING, "round %d: reply of node %s left out: %s", server_round, who, bad.reason)
            self.left_out.append((server_round, bad))
        contributed = [reply.node for reply in applied.replies]
        asked, connected_count = self._sent_messages.nodes, len(self._connected_nodes)
        self.account = Account.make(server_round, connected_count, asked, contributed, left_out)
        _logger.log(INFO, "aggregate_train: %s of %s asked contributed", len(contributed), len(self.account.asked))
        gone = self._forget_overdue(index)
        clients = per_client(self.aggregator, self.probabilities)
        numbers = round_metrics(self.aggregator, applied, self.account, clients, len(gone))
        self.last_round = applied, numbers
        self._sent_messages = SentMessages(0, [])
        self._sent_arrays = self._returned = self.aggregator.arrays()
        metrics = self._aggregate_metrics([reply.content for reply in applied.replies], self.train_metrics_aggr_fn)
        self.pending_log = {"numbers": scalars("train/", metrics) | numbers, "participants": applied.clients.tolist()}
        self._unsaved = True
        record = to_metrics(metrics, numbers)
        self.history.add("train", index, record)
        return self._returned, record

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Select nodes for the evaluation of the model."""
        self.settle(arrays)
        index = self._rounds_before + server_round
        if not self.evaluate_nodes.active or self._evaluated_before(index):
            return []
        if index == self._rounds_resumed:
            arrays = self.current_arrays()
        nodes = self._nodes(grid, self.evaluate_nodes)
        selected = self.evaluate_nodes.select(nodes, index, np.full(len(nodes), -1)) if nodes else []
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

    def _round_setting(self, index: int) -> RoundSetting:
        """Return what is known of a round: whom the server asked was its own draw."""
        assert self.aggregator is not None  # noqa: S101 - the round was configured
        nodes, asked = self._connected_nodes, self._sent_messages.nodes
        setting = RoundSetting(
            at_least=self._num_clients,
            max_clients=self.options["max_clients"],
            max_examples_ratio=self.options["max_examples_ratio"],
            max_norm_ratio=self.options["max_norm_ratio"],
            halve_rows_every=self.options["halve_rows_every"],
        )
        share = self.train_nodes.inclusion(len(nodes))
        self._asked_before |= asked
        clients = {node: client for node in nodes if (client := self._index(node)) is not None}
        connected = sorted(set(clients.values()))
        if share is None:
            return replace(setting, connected=connected)
        unknown = [node for node in nodes if node not in clients and node not in self._asked_before]
        known = self.aggregator.known
        absent = np.setdiff1d(known, np.array(connected, dtype=np.int64))
        # One who was not there would have been asked with the same probability: that is drawn, so that being away
        # counts as often as being there does.
        drawn = generator(self.options["seed"], "flower who would have been asked", index).random(len(absent)) < share
        heard = self.aggregator.last_heard[absent] >= self._rounds_resumed  # or it may be one of the unknown nodes
        counted = drawn & (heard | (not unknown))
        not_asked = [client for node, client in clients.items() if node not in asked] + absent[~counted].tolist()
        return replace(setting, asked_share=share, connected=connected, not_asked=not_asked, never_asked=len(unknown))

    def _forget_overdue(self, index: int) -> list[str]:
        """Let those leave who were not heard of for so long as `forget_after` says."""
        assert self.aggregator is not None  # noqa: S101 - a round was applied
        after = self.options["forget_after"]
        nodes_after = _FORGET_NODES_AFTER if after == "auto" else after
        gone = self.aggregator.overdue(index - 1, None if after == "auto" else after, nodes_after)
        if gone:
            self._forget(gone)
            text = "round %d: %d clients were not heard of for too long and are forgotten: %s"
            _logger.log(INFO, text, index, len(gone), ", ".join(gone[:10]) + (" …" if len(gone) > 10 else ""))
        return gone

    def _forget(self, identities: Sequence[str]) -> list[int]:
        assert self.aggregator is not None  # noqa: S101 - callers have one
        for name in identities:
            self.identity.forget(name)
        return self.aggregator.forget(identities, self.probabilities)

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
        alone = self._release is None or not self._release.alive  # no start() is going on
        self.lock()
        try:
            self._erase(client)
        finally:
            if alone:
                self.unlock()

    def _erase(self, client: str | int) -> None:
        if self.aggregator is None and self.checkpoint is not None and holds_checkpoint(self.checkpoint):
            self._load(self.checkpoint)
        known = [] if self.aggregator is None else [name for name in self.aggregator.identities if name]
        found = [name for name in known if str(client) in (name, name.partition(":")[2])]
        if self.aggregator is None or len(found) != 1:
            raise fail("client", client, f"must be one of the {len(known)} known clients, such as {known[:1]}")
        gone = self._forget(found)
        self.left_out = deque((entry for entry in self.left_out if entry[1].client != found[0]), _LEFT_OUT_KEPT)
        self.last_round = None
        participants = [i for i in self.pending_log.get("participants", []) if i not in gone]
        self.pending_log = {**self.pending_log, "participants": participants}
        self.journal.forget(self.store_run, gone)
        if self.checkpoint is not None and holds_checkpoint(self.checkpoint):
            self._save()
        self.aggregator.erase_spare()

    def _refuse_strangers(self, accepted: Sequence[ClientReply], left_out: Sequence[LeftOut]) -> None:
        """Refuse to go on where nobody can be found again and everything is to be saved."""
        if self.aggregator is None or self.aggregator.identities or accepted or not self.identity.must_last:
            return
        nameless = [reply for reply in left_out if reply.reason == NO_IDENTITY]
        if nameless:
            what = f"a checkpoint needs clients that are found again, and {len(nameless)} replies name none. {REMEDIES}"
            raise fail("identity", self.identity.mode, what)

    def _evaluated_before(self, index: int) -> bool:
        """Whether clients evaluated this round in an earlier process, as far as it came."""
        last = self._rounds_resumed
        return index < last or (index == last and self.history.has("evaluate", index))

    def _nodes(self, grid: Grid, selector: Selector) -> list[int]:
        """Return the connected nodes: those known first, in the order of their rows, then the others."""
        enough = max(self.min_available_nodes, selector.minimum)
        # One wait a round is enough: who did not come for training is not waited for again.
        patience = None if not self._waited else self.max_wait if selector is self.train_nodes else self._patience
        began = time.monotonic()
        nodes = connected(grid, self.identity, enough, patience)
        self._waited = True
        self._patience = None if self.max_wait is None else max(0.0, self.max_wait - (time.monotonic() - began))
        return sorted(nodes, key=lambda node: (self._index(node) is None, self._index(node) or 0, node))

    def _index(self, node: int) -> int | None:
        return None if self.aggregator is None else self.aggregator.index(self.identity.last_identity(node))

    def _last_seen(self, nodes: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
        indices = [self._index(node) for node in nodes]
        seen = self.aggregator.state.last_seen if self.aggregator is not None else np.empty(0)
        return np.array([-1 if i is None else seen[i] for i in indices], dtype=np.int64)

    def _messages(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, nodes: Iterable[int], kind: str
    ) -> list[Message]:
        config["server-round"] = server_round
        record = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        group = str(server_round)
        return [Message(record, dst_node_id=n, message_type=kind, group_id=group, ttl=self.ttl) for n in nodes]

    def _aggregate_metrics(self, contents: list[RecordDict], aggregate: AggregateMetrics) -> MetricRecord | None:
        """Aggregate the clients' own metrics, of those whose metrics have the names that most have.

        A function of the user's sees replies as they came, and what it raises is raised, as for FedAvg; before
        Flower's own average, ids are taken out, which have no mean.
        """
        contents = _alike(contents)
        own = aggregate is not aggregate_metricrecords
        try:
            validate_message_reply_consistency(contents, self.weighted_by_key, check_arrayrecord=False)
        except (InconsistentMessageReplies, IndexError, StopIteration) as error:
            if contents:
                _logger.log(WARNING, "the clients' metrics are not aggregated: %s", error)
            return None
        if own:
            return _clean(aggregate(contents, self.weighted_by_key))
        contents = [self.identity.drop_reported_ids(content) for content in contents]
        try:
            return _clean(aggregate(contents, self.weighted_by_key))
        except Exception as error:  # what clients send must not end the federation
            _logger.log(WARNING, "the clients' metrics are not aggregated: %s", error)
            return None

    def initialize_parameters(self, *_: Any, **__: Any) -> Any:
        """Refuse Flower's legacy workflows, SecAgg+ among them."""
        raise fail("strategy", type(self).__name__, _NO_SECAGG)

    configure_fit = aggregate_fit = initialize_parameters


def _clean(metrics: MetricRecord) -> MetricRecord:
    """Return metrics under short printable names, and not too many of them: clients may have chosen them."""
    kept = [item for item in metrics.items() if not isinstance(item[1], list) or len(item[1]) <= _MOST_NUMBERS]
    return MetricRecord({printable(name, _LONGEST_NAME): value for name, value in kept[:_MOST_METRICS]})


def _alike(contents: Sequence[RecordDict]) -> list[RecordDict]:
    """Return the contents whose metrics have the same names as most have; of two equally many, the first."""
    names = [tuple(sorted((key, *sorted(record)) for key, record in c.metric_records.items())) for c in contents]
    usual = max(dict.fromkeys(names), key=names.count, default=())
    return [content for content, name in zip(contents, names, strict=True) if name == usual]


def _refuse_central_privacy() -> None:
    """Refuse to be wrapped in Flower's central differential privacy, whose guarantee would not hold."""
    frame = sys._getframe(1)
    while frame is not None:
        if isinstance(frame.f_locals.get("self"), _CENTRAL_PRIVACY):
            raise fail("strategy", type(frame.f_locals["self"]).__name__, _NO_CENTRAL_PRIVACY)
        frame = frame.f_back  # type: ignore[assignment]


def _same(arrays: ArrayRecord, others: ArrayRecord | None) -> bool:
    """Whether two models are the same, bit for bit."""
    if others is None or arrays.keys() != others.keys():
        return False
    return all(array.data == others[name].data for name, array in arrays.items())
