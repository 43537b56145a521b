"""What these strategies cannot do, refused with the reason: secure aggregation, central privacy, other local work."""

from __future__ import annotations

import sys

from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
)

from ..checks import InvalidInput, fail
from ..federation import Ints
from ..rules import Rule
from ..state import State

_NO_SECAGG = (
    "cannot be run by Flower's legacy workflows such as SecAgg+: the server needs each client's update in the clear, "
    "to remember it. Let the clients remember, and use start(): "
    'memory="clients", secure_aggregation=SecAggPlusWorkflow(…)'
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


def no_secure_aggregation(strategy: object) -> InvalidInput:
    """Return the error for Flower's legacy workflows, SecAgg+ among them."""
    return fail("strategy", type(strategy).__name__, _NO_SECAGG)


def refuse_central_privacy() -> None:
    """Refuse to be wrapped in Flower's central differential privacy, whose guarantee would not hold.

    A wrapper does not tell the strategy inside that it is there, and is not run by its `start`: all that can be seen of
    it is that a method of it, or of a class derived from it, is among the callers.
    """
    frame = sys._getframe(1)
    while frame is not None:
        first = frame.f_code.co_varnames[:1]  # a method's self, whatever it is called
        caller = frame.f_locals.get(first[0]) if first else None
        if isinstance(caller, _CENTRAL_PRIVACY):
            raise fail("strategy", type(caller).__name__, _NO_CENTRAL_PRIVACY)
        frame = frame.f_back  # type: ignore[assignment]


def refuse_local_work(rule: Rule, state: State, clients: Ints) -> None:
    """Refuse a rule that wants its clients to train otherwise than they do for FedAvg."""
    if rule.local(state, clients) is not None or rule.second_pass(state, clients) is not None:
        raise fail("rule", rule.name, "it changes the local training of the clients, which Flower's clients do not do")
