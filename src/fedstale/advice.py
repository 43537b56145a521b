"""Is keeping stale updates worth it here? What p, and a pilot where there is one, say; the answer may be no.

Per unit of a client's squared update (all alike, α_i equal over the n clients that come, ω_i = (1−p_i)/p_i) the
participation noise of a round is

    V₀ = Σ ω_i/n²                              without a memory (U-FedAvg), for clients that come independently;
    V  = V₀ + κ (Var Σ_S 1/(n p_i) − V₀)       for clients that come together, κ the cosine between their updates.

A memory multiplies it by 1 − S(2βc − β²), with c the correlation of a stored update with the client's next one and S
the share of V₀ that is due to clients that were seen before: s_i = 1 − (1 − (1−p_i)^T)/(p_i T) on average over T
rounds. The smallest is 1 − Sc² at β = c. p says S; c it does not say: it is given, or measured in a pilot, or unknown,
and then the table has a line for each of several.

That table is of the unbiased rules. The default rule, `rules.DEFAULT`, trades some bias for less noise and is not in
it: what it is worth is measured, by a pilot that runs it and U-FedAvg, each at its own best rate.

The answer follows from the tables. Where a pilot compared the two, keep if the default rule ends with the lower
objective by more than twice the error of the difference, do not bother if with the higher one, else nobody can tell.
Without it the answer is about the unbiased rules: where all lines of the table gain at least `_WORTH`, keep; where none
does, do not bother; else nobody can tell before c is known. Where there is hardly any noise to begin with, do not
bother.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from . import rules, theory
from .analysis import Estimate
from .checks import Float, counted, fail, number, positive_int, vector

_Verdict = Literal["keep", "do not bother", "cannot tell"]
_WORTH = 0.1
"""Share of the noise that a memory must take away to be worth its bytes."""
_NEGLIGIBLE = 1e-3
"""Noise, in squared updates of one client, below which there is nothing to take away."""
_UNKNOWN = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Correlations for which the table has a line when nothing is known of it."""
_SAME = 1.01
"""Ratio of the largest to the smallest p up to which plain averaging is unbiased enough."""
_PAPER_MODEL = 421_642


@dataclass(frozen=True)
class MeasuredCorrelation:
    """The correlation of stored updates with the next ones, as a pilot measured it.

    Attributes
    ----------
    correlation, error
        c and its standard error.
    alike
        κ, the mean cosine between the updates of two clients in a round; None where it was not measured.
    source
        Where it was measured, in words.
    """

    correlation: float
    error: float
    alike: float | None
    source: str


@dataclass(frozen=True)
class PilotedRule:
    """A rule in a pilot.

    Attributes
    ----------
    rule
        Its name.
    tried
        The objective by rate, on the seeds for choosing; NaN where one of them diverged.
    rate
        The best of them.
    objective
        At that rate, on the seeds for judging.
    """

    rule: str
    tried: dict[float, float]
    rate: float
    objective: Estimate

    @property
    def at_edge(self) -> bool:
        """Whether the best rate is the smallest or the largest that was tried: it is not tuned then."""
        return len(self.tried) > 1 and self.rate in (min(self.tried), max(self.tried))


@dataclass(frozen=True)
class MeasuredGain:
    """What a memory was worth in a pilot: the default rule against U-FedAvg, on the same participants and batches.

    Attributes
    ----------
    plain, memory
        U-FedAvg and the default rule, each at its own best rate.
    gain
        How much lower the objective of the default rule is, over the seeds for judging.
    source
        What was run, in words.
    """

    plain: PilotedRule
    memory: PilotedRule
    gain: Estimate
    source: str

    @property
    def verdict(self) -> _Verdict:
        """Whether the default rule is ahead beyond the error; a rule that diverged is behind one that did not."""
        lost = bool(self.plain.objective.diverged), bool(self.memory.objective.diverged)
        if lost[0] != lost[1]:
            return "keep" if lost[0] else "do not bother"
        if not self.gain.decided or self.plain.at_edge or self.memory.at_edge:
            return "cannot tell"
        return "keep" if self.gain.mean > 0.0 else "do not bother"


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
    noise, noise_together
        V₀, and Var Σ_S 1/(n p_i) (κ = 1), which is None where nothing is known of who comes together.
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
    correlation: float | None
    table: tuple[_ExpectedNoise, ...]
    gain: MeasuredGain | None
    theory_beta: dict[float, float]
    num_params: int
    storage: dict[str, int]
    verdict: _Verdict
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
    gain
        What a pilot measured of the default rule and U-FedAvg; the answer is then about these two.
    """
    every = vector("p", p)
    if not every.size or (every < 0.0).any() or (every > 1.0).any():
        raise fail("p", p, "must be probabilities in [0, 1], one per client")
    chance = every[every > 0.0]
    if not chance.size:
        raise fail("p", p, "no client ever comes")
    positive_int("num_params", num_params)
    summary = theory.participation_summary(chance)
    length = int(np.ceil(10.0 / summary.p_min - 1e-9)) if rounds is None else positive_int("rounds", rounds)
    seen = _seen(chance, length)
    table = tuple(_line(c, seen) for c in _correlations(correlation))
    noise = summary.absence
    known = correlation.correlation if isinstance(correlation, MeasuredCorrelation) else correlation
    storage = {"float32": 4 * chance.size * num_params, "bfloat16": 2 * chance.size * num_params}
    largest = max(noise, noise_together or 0.0)
    memory = f"{size_text(storage['float32'])} ({counted(chance.size, 'client')} × {num_params:,} parameters × 4 bytes)"
    verdict: _Verdict = "do not bother"
    reason, beta = _quiet(largest), None
    if reason is not None:
        rule = _without_memory(chance)
        sentence = f'Do not bother to keep stale updates: {reason}. Take rule "{rule}", and save {memory}.'
    elif gain is not None:
        verdict, reason = gain.verdict, _measured_reason(gain)
        rule = gain.plain.rule if verdict == "do not bother" else gain.memory.rule
        sentence = _measured_sentence(verdict, reason, gain, memory)
    else:
        verdict, reason = _verdict(table, seen, correlation)
        rule, beta = ("fedstale", "auto") if verdict != "do not bother" else (_without_memory(chance), None)
        sentence = _sentence(verdict, reason, rule, memory)
    return Advice(
        num_clients=chance.size,
        never=int(every.size - chance.size),
        p_avg=summary.p_avg,
        p_min=summary.p_min,
        ratio=summary.ratio,
        inverse_p_var=summary.inverse_p_var,
        rounds=length,
        seen=seen,
        noise=noise,
        noise_together=noise_together,
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


def size_text(size: float) -> str:
    """Bytes in words: 12 MB, 1.2 GB."""
    unit = next((unit for unit in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)) if size >= unit[1]), ("B", 1.0))
    return f"{size / unit[1]:.3g} {unit[0]}"


def _seen(p: Float, rounds: int) -> float:
    """S: of the weights ω_i, the share of rounds in which client i was there before; 1 where there is no noise."""
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
        middle, reach = number("correlation", given.correlation, -1.0, 1.0), 2.0 * number("error", given.error, 0.0)
        return tuple(float(np.clip(middle + step, -1.0, 1.0)) for step in (-reach, 0.0, reach))
    return (number("correlation", given, -1.0, 1.0),)


def _line(correlation: float, seen: float) -> _ExpectedNoise:
    beta = float(np.clip(correlation, 0.0, 1.0))

    def noise(weight: float) -> float:
        return 1.0 - seen * (2.0 * weight * correlation - weight**2)

    return _ExpectedNoise(correlation, beta, noise(beta), noise(1.0))


def _without_memory(p: Float) -> str:
    return "fedavg" if p.max() <= _SAME * p.min() else "u-fedavg"


def _quiet(noise: float) -> str | None:
    """Say why there is nothing to take away; None where there is something."""
    if noise == 0.0:
        return "every client always comes, and plain averaging is exact"
    if noise <= _NEGLIGIBLE:
        return f"the noise of absence is only {noise:.2g} of a client's squared update"
    return None


def _measured_reason(gain: MeasuredGain) -> str:
    both = gain.memory, gain.plain
    edges = [" (at the edge of those tried)" if one.at_edge else "" for one in both]
    named = [f'"{one.rule}" at rate {one.rate:.3g}{edge}' for one, edge in zip(both, edges, strict=True)]
    ends = [f"{name} {_end(one.objective)}" for name, one in zip(named, both, strict=True)]
    apart = ""
    if not np.isnan(gain.gain.mean):
        size = Estimate(abs(gain.gain.mean), gain.gain.error)
        errors = "more than" if gain.gain.decided else "not more than"
        apart = f": {size:.3g} {'lower' if gain.gain.mean > 0.0 else 'higher'}, {errors} twice its error"
    return f"in the pilot {ends[0]}, {ends[1]}{apart}"


def _end(objective: Estimate) -> str:
    return f"{objective:.3g}" if objective.diverged else f"ends with an objective of {objective:.3g}"


def _verdict(
    table: tuple[_ExpectedNoise, ...], seen: float, correlation: float | MeasuredCorrelation | None
) -> tuple[_Verdict, str]:
    """Read the answer about the unbiased rules off the table, and say why."""
    gains = [1.0 - line.fedstale for line in table]
    least, most = min(gains), max(gains)
    known = "measured" if isinstance(correlation, MeasuredCorrelation) else "assumed"
    best = max(table, key=lambda line: -line.fedstale)
    if most < _WORTH:
        if correlation is None:
            return "do not bother", (
                f"even updates that keep a correlation of {best.correlation:g} would take away only {most:.0%} of the "
                f"noise: {1 - seen:.0%} of it is due to clients that were not seen before"
            )
        return "do not bother", (
            f"with the {known} correlation ({_range(table)}) a memory takes away {_percent(least, most)} of the noise, "
            f"less than {_WORTH:.0%}"
        )
    if least >= _WORTH:
        return "keep", (
            f"with the {known} correlation ({_range(table)}) a memory takes away {_percent(least, most)} of the noise, "
            f"at β = {_betas(table)}"
        )
    limit = (_WORTH / seen) ** 0.5
    if correlation is None:
        return "cannot tell", (
            f"a memory is worth it if stored updates have a correlation above {limit:.2f} with the next ones, which p "
            "does not say; a pilot does (--pilot TASK)"
        )
    return "cannot tell", (
        f"the {known} correlation ({_range(table)}) is too uncertain: a memory pays from {limit:.2f} on, and here "
        f"takes away {_percent(least, most)} of the noise; a longer pilot tells more"
    )


def _range(table: tuple[_ExpectedNoise, ...]) -> str:
    values = sorted({round(line.correlation, 2) for line in table})
    return f"{values[0]:.2f}" if len(values) == 1 else f"{values[0]:.2f} to {values[-1]:.2f}"


def _betas(table: tuple[_ExpectedNoise, ...]) -> str:
    values = sorted({round(line.beta, 2) for line in table})
    return f"{values[0]:.2f}" if len(values) == 1 else f"{values[0]:.2f} to {values[-1]:.2f}"


def _percent(least: float, most: float) -> str:
    low, high = f"{least:.0%}", f"{most:.0%}"
    return low if low == high else f"{low} to {high}"


def _sentence(verdict: _Verdict, reason: str, rule: str, memory: str) -> str:
    """Put the answer about the unbiased rules into words."""
    if verdict == "keep":
        return (
            f'Keep stale updates: {reason}. Take rule "{rule}" with beta "auto"; the memory costs {memory}. The '
            f'default rule, "{rules.DEFAULT}", keeps the same memory and trades a little bias for less noise.'
        )
    if verdict == "do not bother":
        return (
            f'Do not bother to keep stale updates with an unbiased rule: {reason}. Of these rules take "{rule}", and '
            f'save {memory}. The default rule, "{rules.DEFAULT}", is biased and not in the table: a pilot compares it '
            "with U-FedAvg (--pilot TASK)."
        )
    return (
        f'Cannot tell whether stale updates are worth keeping: {reason}. Until then rule "{rule}" with beta "auto" is '
        f"safe (β goes to 0 where the memory misleads); it costs {memory}."
    )


def _measured_sentence(verdict: _Verdict, reason: str, gain: MeasuredGain, memory: str) -> str:
    keeping, without = gain.memory.rule, gain.plain.rule
    if verdict == "keep":
        return f'Keep stale updates: {reason}. Take rule "{keeping}"; the memory costs {memory}.'
    if verdict == "do not bother":
        return f'Do not bother to keep stale updates: {reason}. Take rule "{without}", and save {memory}.'
    return (
        f"Cannot tell whether stale updates are worth keeping: {reason}. More rounds and seeds tell more (fedstale "
        f'compare). Until then "{keeping}" costs {memory}, "{without}" nothing.'
    )
