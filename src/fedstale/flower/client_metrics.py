"""The clients' own metrics of a round as one record: names cleaned, what does not fit left out."""

from __future__ import annotations

from collections.abc import Sequence
from logging import WARNING, getLogger

from flwr.app import MetricRecord, RecordDict
from flwr.serverapp.exception import InconsistentMessageReplies
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords, validate_message_reply_consistency

from ..checks import printable
from .identity import Identity
from .options import AggregateMetrics

_logger = getLogger("flwr")
_LONGEST_NAME, _MOST_METRICS, _MOST_NUMBERS = 100, 1000, 100_000
"""Characters of a metric's name, metrics of a round, and numbers in one of them that is a list."""


def is_own(aggregate: AggregateMetrics) -> bool:
    """Whether a function is the user's, not Flower's average: it may look at all of a reply."""
    return aggregate is not aggregate_metricrecords


def aggregate_metrics(
    contents: Sequence[RecordDict], aggregate: AggregateMetrics, weighted_by_key: str, identity: Identity
) -> MetricRecord | None:
    """Aggregate the clients' own metrics, of those whose metrics have the names that most have.

    A function of the user's sees replies as they came, and what it raises is raised, as for FedAvg; before
    Flower's own average, ids are taken out, which have no mean.
    """
    contents = _alike(contents)
    try:
        validate_message_reply_consistency(contents, weighted_by_key, check_arrayrecord=False)
    except (InconsistentMessageReplies, IndexError, StopIteration) as error:
        if contents:
            _logger.log(WARNING, "the clients' metrics are not aggregated: %s", error)
        return None
    if is_own(aggregate):
        return _clean(aggregate(contents, weighted_by_key))
    contents = [identity.drop_reported_ids(content) for content in contents]
    try:
        return _clean(aggregate(contents, weighted_by_key))
    except Exception as error:  # what clients send must not end the federation
        _logger.log(WARNING, "the clients' metrics are not aggregated: %s", error)
        return None


def _clean(metrics: MetricRecord | None) -> MetricRecord | None:
    """Return metrics under short printable names, and not too many of them: clients may have chosen them."""
    if metrics is None:  # a function of the user's may have nothing to say, as for FedAvg
        return None
    kept = [item for item in metrics.items() if not isinstance(item[1], list) or len(item[1]) <= _MOST_NUMBERS]
    return MetricRecord({printable(name, _LONGEST_NAME): value for name, value in kept[:_MOST_METRICS]})


def _alike(contents: Sequence[RecordDict]) -> list[RecordDict]:
    """Return the contents whose metrics have the same names as most have; of two equally many, the first."""
    names = [tuple(sorted((key, *sorted(record)) for key, record in c.metric_records.items())) for c in contents]
    usual = max(dict.fromkeys(names), key=names.count, default=())
    return [content for content, name in zip(contents, names, strict=True) if name == usual]
