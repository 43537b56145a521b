"""What a comparison says, in sentences that follow from its numbers.

A difference counts when it is more than two standard errors, over the same seeds; otherwise the sentence says that the
seeds cannot tell. One seed has no error: then numbers are given and nothing is called better.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..analysis import Estimate, Gap
from ..analysis.metrics import short_title
from .methods import EVERYBODY, PLAIN, Method

if TYPE_CHECKING:
    from .comparison import Comparison

_FEDAVG = Method("fedavg")


def sentences(comparison: Comparison) -> list[str]:
    """Three sentences where FedAvg, U-FedAvg and everybody were compared on data, otherwise what can be said."""
    found = _about_the_gap(comparison) if comparison.metric != "excess_loss" else []
    found += [] if found else _about_the_best(comparison)
    return found + _about_divergence(comparison) + _about_the_clients(comparison)


def _values(comparison: Comparison, method: Method, metric: str) -> list[float]:
    """The metric at the end of each seed; nothing where it is not known of all."""
    runs = comparison.results.get(method, {})
    values = [run.tail(metric) for run in runs.values()]
    return values if len(values) == len(comparison.seeds) and all(value == value for value in values) else []


def _difference(first: list[float], second: list[float]) -> Estimate:
    return Estimate.of([a - b for a, b in zip(first, second, strict=True)])


def _untold(difference: Estimate) -> str:
    """Why a difference is none."""
    return "one seed cannot tell" if difference.count < 2 else "the seeds cannot tell them apart"


def _about_the_gap(comparison: Comparison) -> list[str]:
    limit, plain = (_values(comparison, method, "objective") for method in (EVERYBODY, PLAIN))
    if not limit or not plain:
        return []
    there = f"{Estimate.of(limit):.3f}"
    found = []
    if average := _values(comparison, _FEDAVG, "objective"):
        lost = _difference(average, limit)
        text = (
            f"Averaging whoever comes (FedAvg) ends at a training loss over all clients of {Estimate.of(average):.3f}"
        )
        if lost.decided and lost.mean > 0:
            found.append(f"{text}; with everybody in every round it would be {there}.")
        else:
            found.append(f"{text}, with everybody in every round it is {there}: {_untold(lost)}.")
    gap = Gap(plain=np.array(plain), everybody=np.array(limit))
    text = f"Correcting for absence without a memory (U-FedAvg) ends at {Estimate.of(plain):.3f}"
    if not gap.there:
        untold = f"{text}, and these seeds cannot tell it from the limit: what a memory could gain here is not seen."
        return [*found, f"{text}: one seed cannot tell what a memory could gain." if len(limit) < 2 else untold]
    found.append(f"{text}: a gap of {gap.size:.3f} that a memory may close.")
    return [*found, _who_closes_it(comparison, gap)]


def _who_closes_it(comparison: Comparison, gap: Gap) -> str:
    known = {method: _values(comparison, method, "objective") for method in comparison.results}
    others = {method: values for method, values in known.items() if values and method not in (EVERYBODY, PLAIN)}
    ranked = sorted(others, key=lambda method: sum(others[method]))
    if not ranked:
        return "No other method was compared."
    best = ranked[0]
    gained = _difference(list(gap.plain), others[best])
    share = gap.closed(others[best])
    if gained.mean <= 0 or not gained.decided:
        return f"No method closes a part of it that is beyond its error; {best.label} comes nearest with {share:.0%}."
    text = f"{best.label} closes {share:.0%} of it"
    if len(ranked) == 1:
        return f"{text}."
    second = ranked[1]
    ahead = _difference(others[second], others[best])
    next_one = f"{second.label} {gap.closed(others[second]):.0%}"
    if ahead.decided:
        return f"{text}, more than any other method compared; next comes {next_one}."
    return f"{text}, {next_one}: {_untold(ahead)}."


def _about_the_best(comparison: Comparison) -> list[str]:
    metric = comparison.metric
    known = {method: values for method in comparison.results if (values := _values(comparison, method, metric))}
    sign, name, spec = (-1, "test accuracy", ".1%") if metric == "accuracy" else (1, short_title(metric), ".3g")
    ranked = sorted((m for m in known if m != EVERYBODY), key=lambda method: sign * sum(known[method]))
    if not ranked:
        return []
    best = ranked[0]
    text = f"{best.label} has the best {name}, {Estimate.of(known[best]):{spec}}"
    if len(ranked) == 1:
        return [f"{best.label}: {name} {Estimate.of(known[best]):{spec}}."]
    second = ranked[1]
    ahead = _difference(known[second], known[best])
    ending = "beyond the error" if ahead.decided else _untold(ahead)
    return [f"{text}; next comes {second.label} with {Estimate.of(known[second]):{spec}}: {ending}."]


def _about_the_clients(comparison: Comparison) -> list[str]:
    """Who is frequent and who is rare, and how the worst tenth fares; the paper's two groups need no such words."""
    quantiles = comparison.settings.quantiles
    if (comparison.settings.participation == "two-groups" and not quantiles) or not comparison.groups:
        return []
    text = [f"Clients: {comparison.groups}."]
    numbers = range(1, quantiles + 1) if isinstance(quantiles, int) else sorted({*(quantiles or ())})
    named = {f"quantile{k}": f"Quantile {k}" for k in numbers}
    for name, who in {**named, "worst_decile": "The worst tenth of the clients"}.items():
        known = {method.label: _values(comparison, method, f"accuracy_{name}") for method in comparison.results}
        told = ", ".join(f"{label} {Estimate.of(values):.1%}" for label, values in known.items() if values)
        text += [f"{who} has an accuracy of: {told}."] if told else []
    return text


def _about_divergence(comparison: Comparison) -> list[str]:
    found = []
    for method in comparison.results:
        estimate = comparison.cell(method).estimate
        if estimate.diverged:
            found.append(f"{method.label} {estimate:.3g}: a smaller learning rate may help.")
    return found
