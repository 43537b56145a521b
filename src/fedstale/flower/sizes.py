"""What each client weighs: n_i as claimed, cut down to a multiple of the median, and N with those nobody knows yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from ..checks import Float
from ..state import State
from .members import Members
from .round_facts import RoundSetting

_ENOUGH_FOR_A_MEDIAN = 4
"""Clients from which on the median of their sizes says what is usual."""


def renew_sizes(
    state: State, members: Members, claims: Mapping[int, float], new: int, ratio: float | None, setting: RoundSetting
) -> int:
    """Let the state follow the sizes that clients claim, of whom `new` are new; return how many claims were cut.

    `ratio` is the largest size, in medians of all, and no client outweighs all the others; None believes any. The row
    behind the known clients stands for all who are not known yet.
    """
    known = len(members.identities)
    # After a restart it is not known yet which of the known clients are behind the connected nodes.
    there = len(setting.connected) + new + setting.never_asked
    rows = max(known + 1, state.federation.num_clients)
    old = np.asarray(state.federation.sizes)
    sizes = np.zeros(rows)
    sizes[members.known] = np.pad(old, (0, rows - len(old)))[members.known]
    former = sizes.copy()
    sizes[list(claims)] = list(claims.values())
    cut = _cut_claims(sizes, claims, members, ratio)
    _follow(state, former, sizes, claims)
    others = max(setting.at_least - len(members), there - len(members), 0)
    sizes[known] = others * (sizes[members.known].mean() if len(members) else 1.0)
    if not sizes.any():
        sizes[known] = 1.0
    state.grow(rows, sizes)
    return cut


def largest_size(sizes: Float, members: Members, ratio: float | None) -> float:
    """Return the largest size to be believed in the next round, where that must be said before it; 0 for any."""
    return min(_usual(sizes, members, ratio), 0.5 * float(sizes[members.known].sum()))


def _usual(sizes: Float, members: Members, ratio: float | None) -> float:
    """Return the largest size as a multiple of the median, once there are enough clients to have one; 0 for any."""
    if ratio is None or len(members) < _ENOUGH_FOR_A_MEDIAN:
        return 0.0
    return ratio * float(np.median(sizes[members.known]))


def _cut_claims(sizes: Float, claims: Iterable[int], members: Members, ratio: float | None) -> int:
    """Cut claimed sizes down to a multiple of the median and to all others' sum, once there are enough clients."""
    most = _usual(sizes, members, ratio)
    if not most:
        return 0
    cut = {client for client in claims if sizes[client] > most}
    sizes[list(cut)] = most
    total = float(sizes[members.known].sum())
    majority = [client for client in claims if sizes[client] > total - sizes[client]]  # one at most
    sizes[majority] = total - sizes[majority]
    return len(cut.union(majority))


def _follow(state: State, before: Float, sizes: Float, claims: Iterable[int]) -> None:
    """Let rows in memory count with the new sizes of their clients."""
    for client in claims:
        for memory in state.of_rule.memories().values():
            if (
                memory.has_rows
                and client < memory.num_clients
                and memory.slots[client] >= 0
                and before[client] != sizes[client]
            ):
                mass = memory.masses[client] * (sizes[client] / before[client])
                memory.replace([client], memory.rows([client]), masses=[mass])
