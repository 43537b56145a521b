"""Is keeping stale updates worth it here? What p, and a pilot where there is one, say; the answer may be no.

Per unit of a client's squared update (all alike, α_i equal over the n clients that come, ω_i = (1−p_i)/p_i) the
participation noise of a round is

    V₀ = Σ ω_i/n²                              without a memory (U-FedAvg), for clients that come independently;
    V  = V₀ + κ (Var Σ_S 1/(n p_i) − V₀)       for clients that come together, κ the cosine between their updates.

A memory multiplies it by 1 − S(2βc − β²), with c the correlation of a stored update with the client's next one and S
the share of V₀ that is due to clients that were seen before. Where there is a log, S is counted in it (`log_noise`); in
independent rounds it is s_i = 1 − (1 − (1−p_i)^T)/(p_i T) on average over T rounds. The smallest is 1 − Sc² at β = c. p
says S; c it does not say: it is given, or measured in a pilot, or unknown, and then the table has a line for each of
several.

That table is of the unbiased rules. The default rule, `rules.DEFAULT`, trades some bias for less noise and is not in
it: what it is worth is measured, by a pilot that runs it and U-FedAvg, each at its own best rate.

The answer follows from the tables. Where a pilot compared the two, keep if the default rule ends with the lower
objective by more than twice the error of the difference, do not bother if with the higher one, else nobody can tell.
Without it the answer is about the unbiased rules: where all lines of the table gain at least `_WORTH`, keep; where none
does, do not bother; else nobody can tell before c is known. Where there is hardly any noise to begin with, do not
bother; where a log is too short to know whether there is any, nobody can tell.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from . import theory
from .advice_words import (
    measured_reason,
    measured_sentence,
    percent_text,
    quiet_reason,
    range_text,
    short_log_reason,
    size_text,
    unbiased_sentence,
)
from .checks import Float, counted, fail, number, positive_int, vector
from .measured import MeasuredCorrelation, MeasuredGain, Verdict

_WORTH = 0.1
"""Share of the noise that a memory must take away to be worth its bytes."""
_NEGLIGIBLE = 1e-3
"""Noise, in squared updates of one client, below which there is nothing to take away."""
_UNKNOWN = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Correlations for which the table has a line when nothing is known of it."""
_ERROR_OF_ONE = 0.1
"""Standard error that is supposed of one run, which says none: more than pilots have had (0.06 on the phones)."""
_SAME = 1.01
"""Ratio of the largest to the smallest p up to which plain averaging is unbiased enough."""
_PAPER_MODEL = 421_642


@dataclass(frozen=True)
class _ExpectedNoise:
    """One line of the table: noise of unbiased rules relative to U-FedAvg, if stored updates have this correlation."""

    correlation: float
    beta: float
    """The best β."""
    fedstale: float
    """Noise at the best β."""
    fedvarp: float
    """Noise at β = 1."""


@dataclass(frozen=True)
class Advice:
    """What was found, and the answer that follows from it.

    Attributes
    ----------
    num_clients, never
        Clients that come, and clients that never do: these are coverage lost, and in none of the numbers.
    p_avg, p_min, ratio, inverse_p_var
        Of the clients that come: p_avg/p_min is the degree of heterogeneity, 1/p_var the mean of (1 − p_i)/p_i.
    rounds
        T, the length of the run that is meant.
    seen
        S, the share of the noise that is due to clients that were seen before.
    noise, noise_together, noise_limits
        V₀, Var Σ_S 1/(n p_i) (κ = 1), and between which limits V₀ lies; None where no log says it.
    correlation
        c where it was given or measured, else None.
    table
        Noise of the unbiased rules relative to U-FedAvg, a line for each correlation that has to be reckoned with.
    gain
        What a pilot measured of the default rule and U-FedAvg; None without one.
    theory_beta
        β* of the paper's bound, by σ_g² in units of σ²/K.
    num_params, storage
        d, and the bytes of one row per client that comes, as float32 and as bfloat16.
    verdict, rule, beta
        The answer, and the rule with the β to take.
    reason, sentence
        Why; and all of it in words.
    """

    num_clients: int
    never: int
    p_avg: float
    p_min: float
    ratio: float
    inverse_p_var: float
    rounds: int
    seen: float
    noise: float
    noise_together: float | None
    noise_limits: tuple[float, float] | None
    correlation: float | None
    table: tuple[_ExpectedNoise, ...]
    gain: MeasuredGain | None
    theory_beta: dict[float, float]
    num_params: int
    storage: dict[str, int]
    verdict: Verdict
    rule: str
    beta: str | None
    reason: str
    sentence: str


def advise(
    p: ArrayLike,
    num_params: int = _PAPER_MODEL,
    correlation: float | MeasuredCorrelation | None = None,
    *,
    rounds: int | None = None,
    noise_together: float | None = None,
    noise_limits: tuple[float, float] | None = None,
    seen: float | None = None,
    gain: MeasuredGain | None = None,
) -> Advice:
    """Say whether to keep stale updates, and with which rule.

    Parameters
    ----------
    p
        Probabilities of the clients, shape (N,), in [0, 1]; those of 0 never come.
    num_params
        d, for the storage; default: the paper's MNIST model.
    correlation
        c, the correlation of a client's stored update with its next one: a number that you assume, what a pilot
        measured, or None where it is not known.
    rounds
        T; default: 10/p_min, ten visits of the rarest client.
    noise_together
        Var Σ_S 1/(n p_i) over the clients that come, as a log or a process has it (`theory.weight_variance`).
    noise_limits
        Between which limits V₀ lies, where p is from a log; default: p is exact.
    seen
        S, as a log has it; default: what it would be in independent rounds.
    gain
        What a pilot measured of the default rule and U-FedAvg; the answer is then about these two.
    """
    every = vector("p", p)
    chance = _coming(every)
    positive_int("num_params", num_params)
    summary = theory.participation_summary(chance)
    length = int(np.ceil(10.0 / summary.p_min - 1e-9)) if rounds is None else positive_int("rounds", rounds)
    known_before = _seen(chance, length) if seen is None else number("seen", seen, 0.0, 1.0)
    table = tuple(_line(c, known_before) for c in _correlations(correlation))
    noise = summary.absence
    known = correlation.correlation if isinstance(correlation, MeasuredCorrelation) else correlation
    storage = {"float32": 4 * chance.size * num_params, "bfloat16": 2 * chance.size * num_params}
    largest = max(noise, noise_together or 0.0)
    memory = f"{size_text(storage['float32'])} ({counted(chance.size, 'client')} × {num_params:,} parameters × 4 bytes)"
    verdict: Verdict = "do not bother"
    least, most = (largest, largest) if noise_limits is None else noise_limits
    beta = None
    if max(largest, most) <= _NEGLIGIBLE:
        reason = quiet_reason(largest)
        rule = _without_memory(chance)
        sentence = f'Do not bother to keep stale updates: {reason}. Take rule "{rule}", and save {memory}.'
    elif gain is not None and largest > _NEGLIGIBLE:
        verdict, reason = gain.verdict, measured_reason(gain)
        rule = gain.plain.rule if verdict == "do not bother" else gain.memory.rule
        sentence = measured_sentence(verdict, reason, gain, memory)
    else:
        verdict, reason = _verdict(table, known_before, length, correlation)
        if largest <= _NEGLIGIBLE or (verdict == "keep" and least <= _NEGLIGIBLE):
            verdict, reason = "cannot tell", short_log_reason(least, max(largest, most))
        rule, beta = ("fedstale", "auto") if verdict != "do not bother" else (_without_memory(chance), None)
        sentence = unbiased_sentence(verdict, reason, rule, memory)
    return Advice(
        num_clients=chance.size,
        never=int(every.size - chance.size),
        p_avg=summary.p_avg,
        p_min=summary.p_min,
        ratio=summary.ratio,
        inverse_p_var=summary.inverse_p_var,
        rounds=length,
        seen=known_before,
        noise=noise,
        noise_together=noise_together,
        noise_limits=noise_limits,
        correlation=known,
        table=table,
        gain=gain,
        theory_beta={g: theory.optimal_beta_from_moments(1.0, g, chance) for g in (1.0, 10.0, 100.0, 1000.0)},
        num_params=num_params,
        storage=storage,
        verdict=verdict,
        rule=rule,
        beta=beta,
        reason=reason,
        sentence=sentence,
    )


def negligible(p: ArrayLike, noise_together: float | None = None) -> bool:
    """Whether there is so little noise of absence that no pilot could measure what a memory takes away of it.

    Parameters
    ----------
    p, noise_together
        As for `advise`.
    """
    noise = theory.participation_summary(_coming(vector("p", p))).absence
    return max(noise, noise_together or 0.0) <= _NEGLIGIBLE


def _coming(every: Float) -> Float:
    """The p_i of those that come."""
    if not every.size or (every < 0.0).any() or (every > 1.0).any():
        raise fail("p", every, "must be probabilities in [0, 1], one per client")
    chance = every[every > 0.0]
    if not chance.size:
        raise fail("p", every, "no client ever comes")
    return chance


def _seen(p: Float, rounds: int) -> float:
    """S in independent rounds: of the weights ω_i, the share of rounds in which client i was there before.

    1 where there is no noise.
    """
    odds = (1.0 - p) / p
    if not odds.sum() > 0.0:
        return 1.0
    with np.errstate(divide="ignore"):
        share = 1.0 + np.expm1(rounds * np.log1p(-p)) / (p * rounds)
    return float(np.clip(odds @ share / odds.sum(), 0.0, 1.0))


def _correlations(given: float | MeasuredCorrelation | None) -> tuple[float, ...]:
    if given is None:
        return _UNKNOWN
    if isinstance(given, MeasuredCorrelation):
        error = _ERROR_OF_ONE if np.isnan(given.error) else number("error", given.error, 0.0)
        middle, reach = number("correlation", given.correlation, -1.0, 1.0), 2.0 * error
        return tuple(float(np.clip(middle + step, -1.0, 1.0)) for step in (-reach, 0.0, reach))
    return (number("correlation", given, -1.0, 1.0),)


def _line(correlation: float, seen: float) -> _ExpectedNoise:
    beta = float(np.clip(correlation, 0.0, 1.0))

    def noise(weight: float) -> float:
        return 1.0 - seen * (2.0 * weight * correlation - weight**2)

    return _ExpectedNoise(correlation, beta, noise(beta), noise(1.0))


def _without_memory(p: Float) -> str:
    return "fedavg" if p.max() <= _SAME * p.min() else "u-fedavg"


def _verdict(
    table: tuple[_ExpectedNoise, ...], seen: float, rounds: int, correlation: float | MeasuredCorrelation | None
) -> tuple[Verdict, str]:
    """Read the answer about the unbiased rules off the table, and say why."""
    gains = [1.0 - line.fedstale for line in table]
    least, most = min(gains), max(gains)
    known = "measured" if isinstance(correlation, MeasuredCorrelation) else "assumed"
    best = max(table, key=lambda line: (-line.fedstale, line.correlation))
    reach, taken = range_text(line.correlation for line in table), percent_text(least, most, _WORTH)
    if most < _WORTH:
        if correlation is None:
            return "do not bother", (
                f"even updates that keep a correlation of {best.correlation:g} would take away only "
                f"{percent_text(most, most, _WORTH)} of the noise in {counted(rounds, 'round')}: {1 - seen:.0%} of it "
                "is due to clients that were not seen before (--rounds for a longer training)"
            )
        return "do not bother", (
            f"with the {known} correlation ({reach}) a memory takes away {taken} of the noise, less than {_WORTH:.0%}"
        )
    if least >= _WORTH:
        return "keep", (
            f"with the {known} correlation ({reach}) a memory takes away {taken} of the noise, "
            f"at β = {range_text(line.beta for line in table)}"
        )
    limit = (_WORTH / seen) ** 0.5
    if correlation is None:
        return "cannot tell", (
            f"a memory is worth it if stored updates have a correlation above {limit:.2f} with the next ones, which p "
            "does not say; a pilot does (--pilot TASK)"
        )
    return "cannot tell", (
        f"the {known} correlation ({reach}) is too uncertain: a memory pays from {limit:.2f} on, and here "
        f"takes away {taken} of the noise; a longer pilot, or more runs, would tell"
    )
