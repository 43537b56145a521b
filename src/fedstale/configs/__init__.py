"""One place that turns what a user may pass into JSON and back: stores, sweeps, reports and Flower share it."""

from .objects import (
    CLASSES,
    Config,
    agree,
    check_same,
    from_config,
    not_whole,
    same,
    text,
    to_config,
    unwritten,
    whole,
    written_fields,
)
from .short import (
    canonical,
    rule_of,
    short_beta,
    short_estimator,
    short_process,
    short_rule,
    short_selection,
    short_task,
)

__all__ = [
    "CLASSES",
    "Config",
    "agree",
    "canonical",
    "check_same",
    "from_config",
    "not_whole",
    "rule_of",
    "same",
    "short_beta",
    "short_estimator",
    "short_process",
    "short_rule",
    "short_selection",
    "short_task",
    "text",
    "to_config",
    "unwritten",
    "whole",
    "written_fields",
]
