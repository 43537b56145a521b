"""A round in which the clients hold the memory: what each is told, what they send, and the same rule on the sums.

orders = orders_for(rule, state, t, clients, p)            # to each client, before the round
answers = [answer(order, row, update, mass), …]            # at the clients: fedstale.memory.client_row
delta = step(rule, state, Round(t, …), gathered(…), lost)  # at the server, with those who came
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..checks import Float, fail
from ..federation import Ints, Round
from ..memory.client_row import Answer, Order
from ..memory.held import NAME, Delivered, HeldByClients
from ..state import State
from .base import Rule


def memory_of(state: State) -> HeldByClients:
    """Return the state's memory, which the clients must hold."""
    memory = state.memory
    if not isinstance(memory, HeldByClients):
        raise fail("memory", state.where, f'must be "{NAME}"')
    return memory


def orders_for(
    rule: Rule, state: State, index: int, clients: Ints, probabilities: Float, *, fade: float = 1.0, most: float = 0.0
) -> list[Order]:
    """Return what each of these clients is to be told before round `index`; see `Order`."""
    said = rule.announce(state, index, clients, probabilities)
    held = memory_of(state).slots[clients] >= 0
    return [
        Order(
            round=index,
            counted=int(state.last_seen[client]) if held[k] else -1,
            rarity=float(said.rarity[k]),
            beta=said.beta,
            rate=float(said.rates[k]),
            term=float(said.terms[k]),
            vote=said.vote,
            fade=fade,
            most=most,
            sample=said.sample,
        )
        for k, client in enumerate(clients)
    ]


def needs_single_answers(rule: Rule, state: State) -> str:
    """Return why sums are not enough for a rule, with what to give instead; "" if they are."""
    return rule.announce(state, state.round, np.empty(0, dtype=np.int64), np.empty(0)).single


def gathered(orders: Sequence[Order], answers: Sequence[Answer], num_params: int) -> Delivered:
    """Add up what the participants sent, in the order in which they are given."""
    step, change, statistics = np.zeros(num_params), np.zeros(num_params), np.zeros(2)
    for one in answers:
        if one.remembered:
            step += one.step
        change += one.change
        statistics += one.statistics
    sums = delivered(orders, [one.mass for one in answers], step, change, statistics)
    newcomers = {k: one.step for k, one in enumerate(answers) if not one.remembered}
    residuals = {k: one.residual for k, one in enumerate(answers) if one.residual.size}
    return replace(sums, newcomers=newcomers, residuals=residuals)


def delivered(
    orders: Sequence[Order], masses: Sequence[float], step: Float, change: Float, statistics: Float
) -> Delivered:
    """Return sums that somebody else has added up, with the weights that the server knows."""
    weights = np.array([mass * order.rarity for order, mass in zip(orders, masses, strict=True)])
    total = float(sum(mass**2 * order.term for order, mass in zip(orders, masses, strict=True)))
    return Delivered(weights, orders[0].beta if orders else 0.0, step, change, statistics, total)


def step(
    rule: Rule, state: State, round: Round, sums: Delivered, lost: Ints, *, fade: float = 1.0, model: bool = True
) -> tuple[Any, bool]:
    """Apply a round's sums; return Δ, and whether the memory starts anew after it.

    Parameters
    ----------
    rule, state
        The rule and its state; the round's masses are those of its federation.
    round
        Index, participants and p_i; of its updates only the number counts.
    sums
        What the participants sent.
    lost
        Participants who had lost their row.
    fade
        As in the round's orders.
    model
        Whether the state's model moves, too.
    """
    memory = memory_of(state)
    faded = fade ** (round.index - state.round + 1)
    nothing = np.zeros(state.federation.num_params)
    counted = Round(round.index, round.clients, [nothing] * len(sums.weights), probabilities=round.probabilities)
    before = memory.total, memory.ghosts, memory.slots.copy(), memory.masses.copy()
    try:
        memory.total = memory.total * faded
        memory.ghosts *= faded
        memory.lose(lost)
        memory.deliver(sums, np.asarray(round.clients), state.federation.total_mass)
        delta = (rule.step if model else rule.combine)(state, counted)
    except BaseException:  # a refused round leaves everything as it was
        memory.total, memory.ghosts, memory.slots, memory.masses = before
        raise
    return delta, memory.settle()
