"""The rounds of a federation: Flower's `Strategy.start`, with a beginning that may be in the middle.

It differs from Flower's loop in what a federation with absent clients needs: round numbers go on after a
resume, a round without messages does not touch the network, and a run in which nobody ever answered fails
instead of returning the initial model as a success.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from logging import INFO, getLogger
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.serverapp.strategy.strategy_utils import log_strategy_start_info

from ..checks import positive_int
from ..durable import Lock
from .journal import per_client, scalars

if TYPE_CHECKING:
    from .strategy import RuleStrategy

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]
_logger = getLogger("flwr")


class NobodyAnswered(RuntimeError):
    """No client contributed in any round: there is no trained model to return."""


def run_rounds(
    strategy: RuleStrategy,
    grid: Grid,
    initial_arrays: ArrayRecord,
    num_rounds: int,
    timeout: float,
    train_config: ConfigRecord,
    evaluate_config: ConfigRecord,
    evaluate_fn: EvaluateFn | None,
) -> Result:
    """Run rounds until `num_rounds` are done in total."""
    positive_int("num_rounds", num_rounds, 0)
    _logger.log(INFO, "Starting %s strategy:", type(strategy).__name__)
    log_strategy_start_info(num_rounds, initial_arrays, train_config, evaluate_config)
    strategy.summary()
    aggregator = strategy.prepare(initial_arrays)
    aggregator.read_fitting(initial_arrays)
    # Work that nobody waits for any more would only delay a node's next round.
    strategy.ttl = timeout
    done = aggregator.state.round
    arrays = initial_arrays if done == 0 else strategy.current_arrays()
    if done:
        _logger.log(INFO, "Resumed after round %d with %d known clients", done, len(aggregator.identities))
    began = time.monotonic()
    result = Result(arrays=arrays)
    with _locked(strategy.checkpoint), strategy.journal as journal:
        config = {"kind": "flower", **strategy.config_facts()}
        strategy.store_run = journal.open(config, num_rounds, strategy.store_run, done, strategy.checkpoint)
        first = _server_evaluation(evaluate_fn, done, arrays, result)
        if done and journal.lacks(done - 1):  # the process died between its checkpoint and the end of the round
            first |= _client_evaluation(strategy, grid, arrays, done, evaluate_config, timeout, result)
            journal.record(done - 1, strategy.pending_log, first, per_client(aggregator, strategy.probabilities))
        for server_round in range(done + 1, num_rounds + 1):
            _logger.log(INFO, "")
            _logger.log(INFO, "[ROUND %s/%s]", server_round, num_rounds)
            messages = strategy.configure_train(server_round, arrays, train_config, grid)
            model, train = strategy.aggregate_train(server_round, _send(grid, messages, timeout))
            if model is not None:
                result.arrays = arrays = model
            if train is not None:
                _logger.log(INFO, "\t└──> Aggregated MetricRecord: %s", train)
                result.train_metrics_clientapp[server_round] = train
            evaluated = _client_evaluation(strategy, grid, arrays, server_round, evaluate_config, timeout, result)
            evaluated |= _server_evaluation(evaluate_fn, server_round, arrays, result)
            if strategy.last_round is not None:
                journal.record(
                    server_round - 1, strategy.pending_log, evaluated, per_client(aggregator, strategy.probabilities)
                )
        if num_rounds > done and strategy.train_nodes.active and not aggregator.identities:
            reasons = ", ".join(sorted({reply.reason for _, reply in strategy.left_out})[:3])
            raise NobodyAnswered(
                f"no client contributed in any of {num_rounds} rounds: {reasons or 'no node answered in time'}"
            )
    _logger.log(INFO, "")
    _logger.log(INFO, "Strategy execution finished in %.2fs", time.monotonic() - began)
    _logger.log(INFO, "Final results:")
    for line in io.StringIO(str(result)):
        _logger.log(INFO, "\t%s", line.strip("\n"))
    return result


@contextmanager
def _locked(checkpoint: Path | None) -> Iterator[None]:
    """Keep a second server from going on with the same checkpoint."""
    lock = None if checkpoint is None else Lock(checkpoint / "lock", f"checkpoint {checkpoint}")
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


def _send(grid: Grid, messages: Iterable[Message], timeout: float) -> Iterable[Message]:
    messages = list(messages)
    return grid.send_and_receive(messages, timeout=timeout) if messages else []


def _client_evaluation(
    strategy: RuleStrategy,
    grid: Grid,
    arrays: ArrayRecord,
    server_round: int,
    config: ConfigRecord,
    timeout: float,
    result: Result,
) -> dict[str, float]:
    """Let clients evaluate the model of a round."""
    messages = strategy.configure_evaluate(server_round, arrays, config, grid)
    evaluated = strategy.aggregate_evaluate(server_round, _send(grid, messages, timeout))
    if evaluated is not None:
        _logger.log(INFO, "\t└──> Aggregated MetricRecord: %s", evaluated)
        result.evaluate_metrics_clientapp[server_round] = evaluated
    return scalars("evaluate/", evaluated)


def _server_evaluation(
    evaluate_fn: EvaluateFn | None, server_round: int, arrays: ArrayRecord, result: Result
) -> dict[str, float]:
    if evaluate_fn is None:
        return {}
    found = evaluate_fn(server_round, arrays)
    _logger.log(INFO, "Global evaluation after round %d: %s", server_round, found)
    if found is None:
        return {}
    result.evaluate_metrics_serverapp[server_round] = found
    return scalars("", found)
