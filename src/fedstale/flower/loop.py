"""The rounds of a federation: Flower's `Strategy.start`, with a beginning that may be in the middle.

It differs from Flower's loop in what a federation with absent clients needs: rounds that an earlier process did are
not done again, a round without messages does not touch the network, and a run in which nobody ever answered fails
instead of returning the initial model as a success.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from logging import INFO, getLogger
from typing import TYPE_CHECKING

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.serverapp.strategy.strategy_utils import log_strategy_start_info

from ..checks import positive_int
from ..interrupts import postponed
from .history import Phase
from .journal import per_client, scalars

if TYPE_CHECKING:
    from .strategy import RuleStrategy

_EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]
_logger = getLogger("flwr")


class NobodyAnswered(RuntimeError):
    """No client contributed in any round: there is no trained model to return."""


def run_rounds(
    strategy: RuleStrategy,
    grid: Grid,
    initial_arrays: ArrayRecord,
    num_rounds: int,
    timeout: float | Callable[[int], float],
    train_config: ConfigRecord,
    evaluate_config: ConfigRecord,
    evaluate_fn: _EvaluateFn | None,
) -> Result:
    """Run `num_rounds` rounds, those of an earlier process included."""
    positive_int("num_rounds", num_rounds, 0)
    _logger.log(INFO, "Starting %s strategy:", type(strategy).__name__)
    log_strategy_start_info(num_rounds, initial_arrays, train_config, evaluate_config)
    strategy.summary()
    began = time.monotonic()
    strategy.lock()
    with ExitStack() as stack:
        stack.callback(strategy.unlock)
        before = strategy.begin_start()
        aggregator = strategy.prepare(initial_arrays)
        aggregator.read_fitting(initial_arrays)

        def patience(server_round: int) -> float:
            seconds = timeout(server_round) if callable(timeout) else timeout
            strategy.timeout = seconds
            return seconds

        total = aggregator.state.round
        done = min(max(total - before, 0), num_rounds)
        arrays = initial_arrays if done == 0 else strategy.current_arrays()
        if done:
            _logger.log(INFO, "Resumed after round %d with %d known clients", done, len(aggregator.known))
        result = Result(arrays=arrays)
        history, probabilities = strategy.history, strategy.probabilities
        history.fill(result, before, before + done)
        journal = stack.enter_context(strategy.journal)
        config = {"kind": "flower", **strategy.config_facts()}
        strategy.store_run = journal.open(config, before + num_rounds, strategy.store_run, total, strategy.checkpoint)
        phase: Phase = "server" if done else "initial"
        evaluated = scalars("", history.get(phase, before + done))
        if not history.has(phase, before + done):
            evaluated = _server_evaluation(strategy, evaluate_fn, phase, done, before, arrays, result)
        if done:  # the process may have died between its checkpoint and the end of the round
            evaluated |= _client_evaluation(strategy, grid, arrays, done, evaluate_config, patience(done), result)
        if done and journal.lacks(total - 1):
            journal.record(total - 1, strategy.pending_log, evaluated, per_client(aggregator, probabilities))
        for server_round in range(done + 1, num_rounds + 1):
            _logger.log(INFO, "")
            _logger.log(INFO, "[ROUND %s/%s]", server_round, num_rounds)
            seconds = patience(server_round)
            # No name for the messages: they would keep the model of this round in memory through the next one.
            replies = _send(grid, strategy.configure_train(server_round, arrays, train_config, grid), seconds)
            if not strategy.sees_replies_again:
                replies = _one_by_one(replies)
            with postponed("round"):
                model, train = strategy.aggregate_train(server_round, replies)
                if model is not None:
                    result.arrays = arrays = model
                strategy.settle(arrays)
            if train is not None:
                _logger.log(INFO, "\t└──> Aggregated MetricRecord: %s", train)
                result.train_metrics_clientapp[server_round] = train
            evaluated = _client_evaluation(strategy, grid, arrays, server_round, evaluate_config, seconds, result)
            evaluated |= _server_evaluation(strategy, evaluate_fn, "server", server_round, before, arrays, result)
            if strategy.last_round is not None:
                index = before + server_round - 1
                journal.record(index, strategy.pending_log, evaluated, per_client(aggregator, probabilities))
        if num_rounds > done and strategy.asking.train.active and not aggregator.identities:
            reasons = ", ".join(sorted({reply.reason for _, reply in strategy.left_out})[:3])
            raise NobodyAnswered(
                f"no client contributed in any of {num_rounds} rounds: {reasons or 'no node answered in time'}"
            )
        strategy.end_start(num_rounds)
    _logger.log(INFO, "")
    _logger.log(INFO, "Strategy execution finished in %.2fs", time.monotonic() - began)
    _logger.log(INFO, "Final results:")
    for line in io.StringIO(str(result)):
        _logger.log(INFO, "\t%s", line.strip("\n"))
    return result


def _send(grid: Grid, messages: Iterable[Message], timeout: float) -> Iterable[Message]:
    messages = list(messages)
    return grid.send_and_receive(messages, timeout=timeout) if messages else []


def _one_by_one(replies: Iterable[Message]) -> Iterator[Message]:
    """Hand replies over and let go of them, so that whoever takes them can."""
    waiting = list(replies)[::-1]
    del replies
    while waiting:
        yield waiting.pop()


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
    strategy: RuleStrategy,
    evaluate_fn: _EvaluateFn | None,
    phase: Phase,
    server_round: int,
    before: int,
    arrays: ArrayRecord,
    result: Result,
) -> dict[str, float]:
    """Evaluate the model of a round at the server."""
    if evaluate_fn is None:
        return {}
    found = evaluate_fn(server_round, arrays)
    _logger.log(INFO, "Global evaluation after round %d: %s", server_round, found)
    strategy.history.add(phase, before + server_round, found)
    if found is None:
        return {}
    result.evaluate_metrics_serverapp[server_round] = found
    return scalars("", found)
