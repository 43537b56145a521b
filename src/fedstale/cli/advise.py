"""`fedstale advise`: from a log or given probabilities, whether keeping stale updates is worth it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from ..checks import InvalidInput, client_count, counted, fail
from ..terminal import make_console
from .options import Json, print_json

if TYPE_CHECKING:
    from ..advice import Advice
    from ..participation import Frequencies


def advise(
    log: Annotated[Path | None, typer.Argument()] = None,
    p: Annotated[
        str | None, typer.Option("--p", help='Probabilities instead of a log: "1,1,0.1" or "12x1,12x0.1".')
    ] = None,
    num_clients: Annotated[int | None, typer.Option(help="Number of clients, if some are not in the log.")] = None,
    num_params: Annotated[int, typer.Option(help="Number of model parameters, to estimate the storage.")] = 421_642,
    correlation: Annotated[
        float, typer.Option(help="Correlation of a client's stored update with its next one.")
    ] = 0.5,
    json: Json = False,
) -> None:
    """Recommend p_i, β and storage for a federation, and whether to keep stale updates.

    LOG is a participation log: a CSV file with the columns round,client.
    """
    from ..advice import advise as think
    from ..participation import Trace, frequencies

    if (log is None) == (p is None):
        raise InvalidInput("give either a participation log or --p")
    intervals = None
    never = 0
    if log is not None:
        intervals = frequencies(Trace.from_csv(log, num_clients=num_clients))
        values = intervals.probabilities
        never = int((values == 0).sum())
        if never == len(values):
            raise InvalidInput(f"no client takes part in {log}")
        values = values[values > 0]
    else:
        values = np.array(_parse(p or ""))
    advice = think(values, num_params, correlation)
    if json:
        print_json({**asdict(advice), "never_seen": never})
        return
    _show(advice, intervals, never)


def _parse(text: str) -> list[float]:
    values: list[float] = []
    for part in text.split(","):
        count, times, value = part.strip().rpartition("x")
        try:
            many, probability = int(count) if times else 1, float(value)
        except ValueError:
            raise fail("--p", text, 'must be numbers such as "1,1,0.1" or "12x1,12x0.1"') from None
        values += [probability] * (client_count("--p", len(values) + max(many, 0), 0) - len(values))
    return values


def _show(advice: Advice, intervals: Frequencies | None, never: int) -> None:
    from rich.table import Table

    console = make_console()
    if intervals is not None:
        table = Table(title="participation probabilities with 95 % confidence intervals")
        for heading in ("client", "p̂", "from", "to"):
            table.add_column(heading, justify="right")
        order = np.argsort(intervals.probabilities, kind="stable")
        shown = order if len(order) <= 24 else np.concatenate([order[:12], order[-12:]])
        for client in shown:
            row = (intervals.probabilities[client], intervals.low[client], intervals.high[client])
            table.add_row(str(client), *(f"{value:.4f}" for value in row))
        if len(order) > 24:
            table.caption = f"the 12 rarest and the 12 most frequent of {len(order)}"
        console.print(table)
        if never:
            who = "it is" if never == 1 else "they are"
            text = (
                f"{counted(never, 'client')} never took part: no rule is unbiased for what never comes; {who} left out."
            )
            console.print(text)
    console.print(
        f"N = {advice.num_clients}   p_avg = {advice.p_avg:.4g}   p_min = {advice.p_min:.4g}   "
        f"p_avg/p_min = {advice.ratio:.4g}   1/p_var = {advice.inverse_p_var:.4g}"
    )
    table = Table(
        title=f"participation variance of Δ: updates of norm 1, correlation with stale ones {advice.correlation:g}"
    )
    table.add_column("rule")
    table.add_column("variance", justify="right")
    for name, value in advice.variance.items():
        table.add_row(name, f"{value:.4g}")
    console.print(table)
    table = Table(title="β* of the paper's bound")
    table.add_column("σ_g² in units of σ²/K", justify="right")
    table.add_column("β*", justify="right")
    for heterogeneity, beta in advice.theory_beta.items():
        table.add_row(f"{heterogeneity:g}", f"{beta:.3f}")
    console.print(table)
    console.print(
        "server storage: " + ", ".join(f"{size / 1e6:,.1f} MB as {name}" for name, size in advice.storage.items())
    )
    console.print(f"\n[bold]{advice.sentence}[/]")
