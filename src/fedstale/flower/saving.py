"""What a strategy keeps between rounds and between processes: model, checkpoint, history, number of rounds.

A round is saved when it is known which model is sent next: a subclass may change what `aggregate_train` returned.
"""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg

from ..checks import fail
from ..durable import Lock, relative
from ..memory.held import NAME as CLIENTS
from ..rules import Guarded, Rule, guard, robustly
from . import checkpoint_file
from .aggregator import Aggregator
from .asking import Asking
from .checkpoint_file import holds_checkpoint
from .held_memory import HeldMemory
from .history import History
from .identity import Identity
from .journal import Journal
from .options import Options
from .probabilities import Probabilities
from .strategy_config import StrategyConfig, check_memory


class SavedStrategy(FedAvg):
    """A strategy of Flower whose rounds can be saved and gone on with.

    Parameters
    ----------
    rule
        A rule of the library.
    options
        All options, checked.
    """

    def __init__(self, rule: Rule, options: Options) -> None:
        super().__init__(
            fraction_train=options["fraction_train"],
            fraction_evaluate=options["fraction_evaluate"],
            min_train_nodes=options["min_train_nodes"],
            min_evaluate_nodes=options["min_evaluate_nodes"],
            min_available_nodes=options["min_available_nodes"],
            weighted_by_key=options["weighted_by_key"],
            arrayrecord_key=options["arrayrecord_key"],
            configrecord_key=options["configrecord_key"],
            train_metrics_aggr_fn=options["train_metrics_aggr_fn"],
            evaluate_metrics_aggr_fn=options["evaluate_metrics_aggr_fn"],
        )
        if not isinstance(rule, Rule):
            raise fail("rule", rule, "must be a rule of the library such as fedstale.FedStale()")
        if isinstance(rule, Guarded):  # its bounds are options here, and saved as such
            options["clip_norm"] = rule.clip_norm if options["clip_norm"] is None else options["clip_norm"]
            options["max_weight"] = rule.max_weight if options["max_weight"] is None else options["max_weight"]
            rule = rule.rule
        self.rule = rule
        self.bounded_rule = guard(robustly(rule, options["robust"]), options["clip_norm"], options["max_weight"])
        self.options = options
        self.identity = Identity(options["identity"], must_last=options["checkpoint"] is not None)
        self.probabilities = Probabilities(options["probabilities"], self.identity.aliases)
        self.asking = Asking(self.identity, options, rule.selection(), len(self.probabilities.known or ()))
        held = options["memory"] == CLIENTS
        self.held = HeldMemory(self.identity, self.probabilities, options) if held else None
        """Where the clients hold the memory."""
        self.checkpoint = None if options["checkpoint"] is None else Path(options["checkpoint"]).absolute()
        self.journal = Journal(options["store"])
        self.history = History(self.checkpoint)
        self.aggregator: Aggregator | None = None
        self.pending_log: dict[str, Any] = {}
        """What is to be written to the store about the last round: a process may die after saving, before that."""
        self.store_run: str | None = None
        # The model that the next round starts from, as the last `aggregate_train` returned it or as it was changed
        # since; and whether the round that made it is still to be saved.
        self._sent_arrays: ArrayRecord | None = None
        self._returned: ArrayRecord | None = None
        self._unsaved = False
        self._behind = False  # whether rounds are settled and not in the checkpoint
        # Rounds of earlier calls of `start`, of this one, and rounds that were done before this process.
        self._rounds_before = 0
        self._rounds_configured = 0
        self.rounds_resumed = 0
        self._send_saved = False
        self._release: weakref.finalize[[], SavedStrategy] | None = None

    def prepare(self, arrays: ArrayRecord) -> Aggregator:
        """Start the federation with this model, or go on with the checkpoint where that is asked for."""
        if self.aggregator is None:
            self.lock()
            if self.checkpoint is not None and holds_checkpoint(self.checkpoint):
                if self.options["resume"] == "auto":
                    return self.load_checkpoint(self.checkpoint)
                allowed = f'holds a checkpoint already: give {type(self).__name__}(…, resume="auto") to go on with it, '
                raise fail("checkpoint", str(self.checkpoint), allowed + "or choose another folder")
            self.aggregator = Aggregator.start(
                self.bounded_rule,
                arrays,
                self.probabilities,
                weights=self.options["weights"],
                memory=self.options["memory"],
                averaged_buffers=self.options["averaged_buffers"],
            )
            self.history.clear()
            self._sent_arrays = self._returned = arrays
        return self.aggregator

    def load_checkpoint(self, folder: Path) -> Aggregator:
        """Go on with the checkpoint in the folder, which must be of a strategy like this one."""
        aggregator, facts, pending_log = checkpoint_file.load(folder)
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

    def _take_up(self, aggregator: Aggregator, saved: StrategyConfig, pending_log: dict[str, Any]) -> None:
        """Go on with what a checkpoint holds."""
        self.aggregator = aggregator
        self.store_run = saved.store_run
        self.identity.claims.update(saved.facts["claims"])
        self.identity.aliases.update(saved.facts.get("aliases", {}))
        self.identity.nodes.update({int(node): name for node, name in saved.facts["nodes"].items()})
        self.asking.late.restore(saved.facts.get("unanswered", ()), checkpoint_file.sent_models(aggregator))
        self.pending_log = pending_log
        self.rounds_resumed = aggregator.state.round
        self._send_saved = True
        self.history.load(self.rounds_resumed)
        self._sent_arrays = aggregator.arrays()
        self._returned = aggregator.returned or self._sent_arrays

    def config_facts(self) -> dict[str, Any]:
        """Return what a checkpoint says of the strategy, as JSON values."""
        options = dict(self.options)
        if self.checkpoint is not None and isinstance(options["store"], (str, Path)):
            options["store"] = relative(Path(options["store"]), self.checkpoint)  # so that both can be copied or moved
        return {
            **StrategyConfig.describe(self.rule, options, self.store_run).facts,
            "claims": dict(self.identity.claims),
        }

    def lock(self) -> None:
        """Keep a second server away from the checkpoint, until `unlock` or the end of this strategy."""
        if self.checkpoint is not None and not self.locked:
            lock = Lock(self.checkpoint / "lock", f"checkpoint {self.checkpoint}")
            self._release = weakref.finalize(self, lock.release)

    @property
    def locked(self) -> bool:
        """Whether the checkpoint is this strategy's now, as it is while rounds go on."""
        return self._release is not None and self._release.alive

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
        """Take note of how many rounds a loop had, with those of an earlier process, and save the last ones."""
        self._rounds_configured = num_rounds
        self.save_rest()

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
        self._behind = self.checkpoint is not None
        if self.aggregator.state.round % self.options["checkpoint_every"] == 0:
            self.save_rest()

    def save_rest(self) -> None:
        """Save rounds that were done since the last checkpoint."""
        if self._behind:
            self.save_checkpoint()

    def save_checkpoint(self) -> None:
        """Write the checkpoint as things stand."""
        assert self.aggregator is not None  # noqa: S101 - callers have them
        assert self.checkpoint is not None  # noqa: S101
        changed = self._returned if self._returned is not self._sent_arrays else None
        nodes = {str(node): name for node, name in self.asking.connected_clients().items()}
        late = self.asking.late
        aliases = {key: name for key, name in self.identity.aliases.items() if key in self.aggregator.members}
        facts = {**self.config_facts(), "nodes": nodes, "aliases": aliases, "unanswered": late.describe()}
        checkpoint_file.save(self.aggregator, self.checkpoint, facts, self.pending_log, changed, late.models)
        self._behind = False

    def _use(self, arrays: ArrayRecord) -> None:
        """Let the next round start from this model."""
        assert self.aggregator is not None  # noqa: S101 - there is one after `prepare`
        # A model of narrow numbers is kept wider than it is sent: it stays where nobody has changed it.
        if arrays is not self._sent_arrays and not _same(arrays, self._sent_arrays):
            self.aggregator.set_model(arrays)
            self._sent_arrays = arrays


def _same(arrays: ArrayRecord, others: ArrayRecord | None) -> bool:
    """Whether two models are the same, bit for bit."""
    if others is None or arrays.keys() != others.keys():
        return False
    return all(array.data == others[name].data for name, array in arrays.items())
