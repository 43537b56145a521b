"""How orders and answers of a memory that the clients hold travel in Flower's messages."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from ..checks import InvalidInput
from ..memory.client_row import Answer, Order
from .layout import decode

KEY = "fedstale"
"""The name of our records: orders to a client, and the numbers of its answer."""
SUMS = "fedstale.sums"
"""The two vectors of an answer, and what the choice of θ wants to see."""
WHO = "who"
"""In the place of an order: asks a client to say who it is."""
_SIZE_KEY, _FEDERATION = "size-key", "federation"
_KINDS: dict[str, type] = {"int": int, "float": float}


class BadAnswer(InvalidInput):
    """Records that are not an answer to an order."""


def order_record(order: Order, size_key: str, federation: str) -> ConfigRecord:
    """Write an order; `size_key` names the metric with the number of examples, "" where every client weighs 1."""
    return ConfigRecord({**asdict(order), _SIZE_KEY: size_key, _FEDERATION: federation})


def read_order(record: ConfigRecord) -> tuple[Order, str, str]:
    """Read what `order_record` wrote."""
    numbers = {part.name: _KINDS[str(part.type)](record[part.name]) for part in fields(Order)}
    return Order(**numbers), str(record[_SIZE_KEY]), str(record[_FEDERATION])


def answer_records(answer: Answer, order: Order, dtype: np.dtype[Any]) -> RecordDict:
    """Write an answer, its vectors in the model's precision."""
    vectors = {"step": answer.step.astype(dtype), "change": answer.change.astype(dtype)}
    if answer.residual.size:
        vectors["residual"] = answer.residual
    numbers = ConfigRecord(
        {
            "round": order.round,
            "mass": float(answer.mass),
            "remembered": answer.remembered,
            "statistics": [float(value) for value in answer.statistics],
        }
    )
    return RecordDict({SUMS: ArrayRecord({name: Array(vector) for name, vector in vectors.items()}), KEY: numbers})


def read_answer(content: RecordDict, order: Order, length: int, *, vectors: bool = True) -> Answer:
    """Read an answer to an order; refuse what is none."""
    about = content.get(KEY)
    if not isinstance(about, ConfigRecord):
        raise BadAnswer("it sends no sums: its ClientApp needs mods=[fedstale.flower.memory_mod]")
    try:
        if about["round"] != order.round:
            raise BadAnswer(f"it answers an order of round {about['round']!r}")
        mass, remembered = about["mass"], about["remembered"]
        numbers = np.array(about["statistics"], dtype=np.float64)
        if not isinstance(mass, float) or not 0.0 < mass < np.inf or (order.most and mass > order.most):
            raise BadAnswer(f"its weight {mass!r} is not one that it may have")
        if not isinstance(remembered, bool) or numbers.shape != (2,) or not np.isfinite(numbers).all():
            raise BadAnswer("its numbers are not those of an answer")
        found = [np.empty(0)] * 3
        if vectors:
            record = content[SUMS]
            found[:2] = [_vector(record[name], length) for name in ("step", "change")]
            if order.sample and remembered:
                found[2] = _vector(record["residual"], min(order.sample, length))
    except (LookupError, TypeError, ValueError) as error:
        raise BadAnswer(str(error) if isinstance(error, BadAnswer) else f"it is not an answer: {error!r}") from None
    return Answer(found[0], found[1], numbers, mass, remembered, found[2])


def _vector(array: Any, length: int) -> NDArray[np.float64]:
    found = decode(array)
    if found.shape != (length,) or found.dtype.kind != "f":
        raise BadAnswer(f"a vector of {length} numbers is expected, not {found.dtype} of shape {found.shape}")
    wide: NDArray[np.float64] = found.astype(np.float64)
    if not (np.abs(wide) <= 1e30).all():
        raise BadAnswer("it holds NaN, infinity or numbers that are too large")
    return wide
