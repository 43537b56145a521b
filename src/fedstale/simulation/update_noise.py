"""How much the global update varies with who happens to come: participation noise and bias of any rule, measured.

Given the past, Δ of a round is a function of the participants S alone. Before the round is played, everybody trains,
and the rule combines the round once for each of several other draws of S, on copies of its state. With Δ̄ = Σ α_i Δ_i,
what everybody would have given,

    noise = E‖Δ − E[Δ]‖² / ‖Δ̄‖²        bias = ‖E[Δ] − Δ̄‖² / ‖Δ̄‖²

For independent clients and a rule of the tempered family both have a closed form, `theory.tempered_noise` and
`theory.tempered_bias`, to which the tests compare them over all sets S. What a rule asks of a client (SCAFFOLD's
correction, a starting point) is taken not to depend on who else comes.
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..checks import Float, NonFinite
from ..federation import Ints, Round
from ..participation import Trace
from ..randomness import generator
from .history import Metrics

if TYPE_CHECKING:
    from .loop import Simulation

__all__ = ["everybody_round", "noise_of_update", "other_draws"]

_TOO_SMALL = 1e-30
"""Of ‖Δ̄‖²: nothing is relative to it."""


def noise_of_update(simulation: Simulation, draws: Sequence[Ints], chances: Sequence[float] | None = None) -> Metrics:
    """Measure noise and bias of the coming round's update, and the seconds that combining it takes.

    Parameters
    ----------
    simulation
        Between two rounds; it is left as it is.
    draws
        Participants that might come, each a sorted list of clients.
    chances
        The probability of each; without them the draws are samples, and the noise is corrected for their number.
    """
    rule, t = simulation.rule, simulation.state.round
    everyone = np.arange(simulation.federation.num_clients)
    round = everybody_round(simulation)
    full = simulation.federation.alpha() @ np.asarray(round.updates, dtype=np.float64)
    length = float(full @ full)
    if not length > _TOO_SMALL:
        return {}
    parts: dict[str, Any] = {"probabilities": round.probabilities, "steps": round.steps}
    found, seconds = [], []
    for clients in draws:
        here = np.isin(everyone, clients)
        second = None if round.second_pass is None else round.second_pass[here]
        some = {name: None if part is None else part[here] for name, part in parts.items()}
        played = Round(t, everyone[here], round.updates[here], lr=round.lr, second_pass=second, **some)
        state = copy.deepcopy(simulation.state)
        began = time.thread_time()
        try:
            with warnings.catch_warnings():  # what a rule warns of, the run says once
                warnings.simplefilter("ignore")
                found.append(np.asarray(rule.combine(state, played), dtype=np.float64))
        except NonFinite:
            return {}
        seconds.append(time.thread_time() - began)
    noise, bias = _noise_and_bias(np.stack(found) * rule.server_lr, full, chances)
    return {
        "update_noise": noise / length,
        "update_bias": bias / length,
        "combine_seconds": float(np.median(seconds)),
    }


def everybody_round(simulation: Simulation) -> Round:
    """Let everybody train as the rule would have them, and return the round in which all of them come."""
    state, everyone = simulation.state, np.arange(simulation.federation.num_clients)
    rule, t = simulation.rule, state.round
    updates = np.array(simulation.trainer.updates(simulation.model, everyone, t, rule.local(state, everyone)))
    again, second = rule.second_pass(state, everyone), None
    if again is not None:
        second = np.array(simulation.trainer.updates(simulation.model, everyone, t, again))
    p: Float | None = None
    if state.estimator is not None:
        p = np.asarray(simulation.estimator.probabilities(state.estimator, everyone))
    steps, lr = simulation.trainer.steps_and_lr(everyone, t)
    return Round(t, everyone, updates, probabilities=p, steps=steps, lr=lr, second_pass=second)


def other_draws(simulation: Simulation, count: int) -> list[Ints]:
    """Draw who else might come to the coming round, so many times: by other seeds, in a log by its other rounds."""
    t, last_seen = simulation.state.round, simulation.state.last_seen
    rng = generator(simulation.seed, "update noise", t)
    seeds, rounds = rng.integers(2**62, size=count).tolist(), [t] * count
    log = simulation.participation.availability
    if isinstance(log, Trace):  # it says who came, and nothing of who might have
        rounds = rng.integers(log.num_rounds, size=count).tolist()
    own, found = simulation.rule.selection(), []
    for seed, when in zip(seeds, rounds, strict=True):
        clients = simulation.participation.participants(seed, when, last_seen)
        found.append(clients if own is None else own.select(clients, seed, t, last_seen))
    return found


def _noise_and_bias(deltas: NDArray[Any], full: Float, chances: Sequence[float] | None) -> tuple[float, float]:
    """E‖Δ − E[Δ]‖² and ‖E[Δ] − Δ̄‖² over draws, shape (M, d); of samples, both without the error of the mean."""
    count = len(deltas)
    weights = np.full(count, 1.0 / count) if chances is None else np.asarray(chances, dtype=np.float64)
    mean = weights @ deltas
    spread = float(weights @ np.sum((deltas - mean) ** 2, axis=1))
    away = float(np.sum((mean - full) ** 2))
    if chances is not None:
        return spread, away
    noise = spread * count / (count - 1)
    return noise, max(0.0, away - noise / count)
