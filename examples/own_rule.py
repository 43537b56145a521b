"""A method of one's own in one file: a rule, compared with FedStale on the digits.

FedStale gives all stale updates the same weight β. Here the weight of a stale update falls with its age a_i, the rounds
since its client last came: β_i = 2^(−a_i / half-life). With the same β_i in both terms of Eq. 8 the update stays
unbiased, whatever the ages:

    Δ = Σ_i α_i β_i h_i + Σ_S (α_i/p_i)(Δ_i − β_i h_i)

A very long half-life is U-FedVARP (β = 1), a very short one U-FedAvg (β = 0).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

import fedstale as fs
from fedstale.analysis import Estimate
from fedstale.checks import number
from fedstale.federation import CheckedRound
from fedstale.rules import MemoryState, RuleState, refuse_non_finite

SEEDS, ROUNDS = 3, 100


@dataclass(eq=False, kw_only=True)
class FadingState(MemoryState):
    """What the rule remembers: h_i (`stale`, from the class it derives from) and a sum of them."""

    faded: NDArray[np.float64]
    """Σ_i α_i β_i h_i, one vector, so that a round costs O(|S|·d)"""


@dataclass(frozen=True, kw_only=True)
class Fading(fs.Rule):
    """Stale updates fade with age; for memories that keep every client's update as it was sent (ram, disk).

    Parameters
    ----------
    half_life
        Rounds after which a stale update counts half.
    """

    half_life: float = 20.0

    name: ClassVar[str] = "fading"
    memory: ClassVar[bool] = True  # one h_i per client
    unbiased: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse what makes no sense, in one clear line."""
        super().__post_init__()
        number("half_life", self.half_life, 0.0, open_low=True)

    def start(self, state: fs.State) -> RuleState:
        """No update is remembered yet."""
        return FadingState(stale=state.remember(), faded=np.zeros(state.federation.num_params))

    def update(self, state: fs.State, round: CheckedRound) -> NDArray[np.float64]:
        """Compute Δ, and only when it is sound move the state on."""
        own = state.own(FadingState)
        faded = own.faded * self.fade(round.index - (state.round - 1))
        trust = self.fade(round.index - state.last_seen[round.clients])[:, None]
        stale = trust * own.stale.rows(round.clients)
        fresh = np.array(round.updates, dtype=np.float64).reshape(stale.shape)
        delta = faded + (round.alpha / round.probabilities) @ (fresh - stale)
        refuse_non_finite(round, delta)
        own.stale.replace(round.clients, fresh)
        kept = own.stale.rows(round.clients)  # as the memory rounds it
        own.faded = faded + round.alpha @ (kept - stale)
        return np.asarray(delta)

    def fade(self, age: int | NDArray[np.int64]) -> NDArray[np.float64]:
        """β of an update of this age."""
        return np.asarray(0.5 ** (np.asarray(age) / self.half_life))


RULES = (fs.UnbiasedFedAvg(), fs.FedStale(beta=0.5), fs.FedStale(beta="auto"), fs.UnbiasedFedVARP(), Fading())


def main() -> None:
    print(f"digits, half of the clients come with p = 0.1, label swap 0.6, {ROUNDS} rounds, {SEEDS} seeds")
    print(f"{'rule':<20}{'accuracy':>17}{'rare clients':>17}")
    for rule in RULES:
        # The same participants and batches for every rule: they depend on the seed alone.
        runs = [fs.simulate("digits", rule, p_min=0.1, swap=0.6, rounds=ROUNDS, seed=seed) for seed in range(SEEDS)]
        ended = [run.diverged_in for run in runs]
        cells = [
            f"{Estimate.of([run.tail(metric) for run in runs], ended):.1%}"
            for metric in ("accuracy", "accuracy_group1")
        ]
        print(f"{runs[0].label:<20}{cells[0]:>17}{cells[1]:>17}")


if __name__ == "__main__":
    main()
