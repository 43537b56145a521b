"""Flower's Strategy around any rule of the library: Algorithm 1 on a real federation.

Clients stay as they are for FedAvg: they receive a model, train it and send it back. The server computes
Δ_i = w_t − w_i, lets the rule combine what arrived in time, steps, counts who came, and writes a checkpoint.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from logging import INFO, WARNING, getLogger
from pathlib import Path
from typing import Any, Self, Unpack

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from ..checks import fail
from ..interrupts import postponed
from ..rules import Rule
from . import checkpoint_file
from .account import Account
from .client_metrics import is_own
from .evaluation import EvaluatedStrategy
from .forgetting import erase, forget_overdue
from .identity import NO_KEY
from .journal import per_client, round_metrics, scalars, to_metrics
from .late_updates import note_unanswered, take_up_late
from .loop import run_rounds
from .options import Options, checked
from .refusals import no_secure_aggregation, refuse_central_privacy
from .replies import ClientReply, LeftOut, SentMessages, sort_replies
from .round_facts import AppliedRound
from .strategy_config import StrategyConfig

_logger = getLogger("flwr")
_LEFT_OUT_KEPT = 10_000
"""How many replies that were left out a strategy can tell of."""


class RuleStrategy(EvaluatedStrategy):
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
        "forgetting", one number, a mapping {identity: p_i}, or an `Estimator`. A client with a key has the name
        under which that was registered.
    weights
        α_i, what the model is for: "sample" (default, as FedAvg: a client weighs by its `weighted_by_key`) or "client"
        (every client weighs the same).
    max_examples_ratio
        With "sample", a client counts with at most so many times the median of all clients' examples, and with at
        most what all the others have together, from four clients on: a client may claim any number. None: any number
        is believed.
    max_norm_ratio
        An update, and a change of running statistics or counters, is shortened to at most so many times the median
        length of what the other clients sent last, from three others on. None: any length.
    halve_rows_every
        A remembered update that was not renewed for so many rounds is halved, and again after as many; so is the weight
        of what is remembered of running statistics. None: never.
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
        does not get twice, never for others, nor from a memory without rows ("lowrank:K"), which cannot forget; None:
        never.
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
        super().__init__(rule, checked(type(self), options))
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
        self._secure_replies: list[Message] = []
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
            self.held.prepare(self.bounded_rule, aggregator)
        if index <= self.rounds_resumed:
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
        nodes = self.asking.nodes(grid, self.asking.train, aggregator, self._patience)
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
            messages = self.held.write_orders(grid, self.bounded_rule, aggregator, index - 1, messages, share)
        self.sent_messages = SentMessages(server_round, messages)
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
        if index <= self.rounds_resumed:
            return self._returned, self.history.get("train", index)
        if self.aggregator is None or self.sent_messages.round != server_round:
            raise fail("server_round", server_round, "configure_train must be called first, in the same round")
        if self.options["secure_aggregation"] is not None:
            replies, self._secure_replies = self._secure_replies, []
        key, sent, replies = self.arrayrecord_key, self.sent_messages, list(replies)
        whole = self.held is not None or is_own(self.train_metrics_aggr_fn)
        accepted, left_out = sort_replies(replies, sent, self.identity, key, self.weighted_by_key, whole=whole)
        self._refuse_strangers(accepted, left_out)
        late, unused = take_up_late(self, index)
        left_out += unused
        note_unanswered(self, index, replies)
        del replies  # large models need not wait in memory until the round is done
        setting = self.asking.setting(index, self.sent_messages.nodes, self.aggregator, self.rounds_resumed)
        if self.held is None:
            applied = self.aggregator.apply_round(self.bounded_rule, index - 1, accepted, self.probabilities, setting)
        else:
            applied = self.held.apply_round(self.bounded_rule, self.aggregator, index - 1, accepted, setting)
        left_out += applied.left_out
        for reply in applied.replies:
            self.identity.confirm(reply.node, reply.identity)
        for bad in left_out:
            who = f"{bad.node} ({bad.client})" if bad.client else f"{bad.node}"
            _logger.log(WARNING, "round %d: reply of node %s left out: %s", server_round, who, bad.reason)
            self.left_out.append((server_round, bad))
        contributed = [reply.node for reply in applied.replies]
        asked, connected_count = self.sent_messages.nodes, len(self.asking.connected)
        self.account = Account.make(server_round, connected_count, asked, contributed, left_out)
        _logger.log(INFO, "aggregate_train: %s of %s asked contributed", len(contributed), len(self.account.asked))
        gone = forget_overdue(self, index)
        clients = per_client(self.aggregator, self.probabilities)
        busy = len(self.asking.late.busy)
        numbers = round_metrics(self.aggregator, applied, self.account, clients, len(gone), late, busy)
        numbers |= {} if self.held is None else self.held.numbers
        self.last_round = applied, numbers
        self.sent_messages = SentMessages(0, [])
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
            Its identity such as "client-id:7", or what it reports: 7; or the name under which its key was registered.
        """
        erase(self, client)

    def _refuse_strangers(self, accepted: Sequence[ClientReply], left_out: Sequence[LeftOut]) -> None:
        """Refuse to go on where nobody can be found again and everything is to be saved."""
        if self.aggregator is None or self.aggregator.identities or accepted or not self.identity.must_last:
            return
        nameless = [reply for reply in left_out if reply.reason.endswith(NO_KEY)]
        if nameless:
            what = f"a checkpoint needs clients that are found again, and {len(nameless)} replies name none. "
            raise fail("identity", self.identity.mode, what + self.identity.remedies)

    def initialize_parameters(self, *_: Any, **__: Any) -> Any:
        """Refuse Flower's legacy workflows, SecAgg+ among them."""
        raise no_secure_aggregation(self)

    configure_fit = aggregate_fit = initialize_parameters
