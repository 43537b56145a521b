"""What is recorded of a round beside Δ and the model: one definition for `Simulation` and for runs in lock-step."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..checks import Float
from ..federation import Ints
from ..participation import Participation
from ..rules import Rule
from ..state import State
from .history import Metrics


def is_evaluated(t: int, every: int, rounds: int) -> bool:
    """Whether the model is evaluated after round t: every so many rounds, and after the last one."""
    return (t + 1) % every == 0 or t + 1 == rounds


def before_round(rule: Rule, state: State, t: int, clients: Ints, itemsize: int) -> Metrics:
    """What is known before round t: who comes, how old the memory is, what goes over the wire.

    Parameters
    ----------
    rule, state
        The rule, and its state as it is before the round.
    t
        The round's index.
    clients
        The participants.
    itemsize
        Bytes of one parameter of the model.
    """
    last = state.last_seen
    age = t - last[last >= 0]
    vector = state.federation.num_params * itemsize
    up, down = rule.traffic(state, clients)
    return {
        "participants": float(len(clients)),
        "staleness_mean": float(age.mean()) if age.size else 0.0,
        "staleness_max": float(age.max(initial=0)),
        "bytes_up": float(up * vector),
        "bytes_down": float(down * vector),
    }


def p_error(participation: Participation, t: int, estimated: Float) -> float:
    """Root mean square distance between estimated and true p; NaN where the true one is not known."""
    try:
        true = participation.known(t)
    except ValueError:  # a selection whose probabilities have no closed form
        return float("nan")
    return float(np.sqrt(np.mean((estimated - true) ** 2)))


def worst_decile(accuracies: Float) -> float:
    """Mean accuracy of the tenth of the clients (at least one) for whom the model is worst; NaN without any."""
    known = np.sort(accuracies[np.isfinite(accuracies)])
    return float(known[: -(-len(known) // 10)].mean()) if len(known) else float("nan")


def model_quality(accuracy: float, loss: float, by_group: Mapping[int, float], swapped: Mapping[str, float]) -> Metrics:
    """How good a model is: over all test samples, over those of each group, and which labels were swapped.

    Parameters
    ----------
    accuracy, loss
        Over all clients' test samples.
    by_group
        The accuracy over the samples of each participation group.
    swapped
        `Task.swapped`.
    """
    groups = {f"accuracy_group{group}": value for group, value in by_group.items()}
    return {"accuracy": accuracy, "test_loss": loss, **groups, **swapped}
