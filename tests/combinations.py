"""Tables of cases: the default run takes each value of each parameter, `make test-all` all of their combinations."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest


def combinations(*axes: Sequence[Any]) -> list[Any]:
    """Every combination of values; slow are those without which each value still occurs.

    Case k of the default run has value k of every axis, where a shorter axis begins again at its end.
    """
    longest = range(max(map(len, axes)))
    default = {tuple(k % len(axis) for axis in axes) for k in longest}
    every = itertools.product(*(range(len(axis)) for axis in axes))
    return [
        pytest.param(
            *(axis[k] for axis, k in zip(axes, case, strict=True)), marks=() if case in default else pytest.mark.slow
        )
        for case in every
    ]
