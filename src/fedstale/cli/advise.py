"""`fedstale advise`: from a log or given probabilities, and a pilot, whether keeping stale updates is worth it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from ..checks import Float, InvalidInput, counted, fail, positive_int, printable
from ..terminal import make_console
from .options import Json, numbers, print_json

if TYPE_CHECKING:
    from ..advice import Advice
    from ..measured import MeasuredCorrelation, MeasuredGain
    from ..participation import Trace

_SHOWN = 24
_QUARTERS = 4
_MOST_PAIRS = 2000
"""Devices of a log up to which it is summed up."""


def advise(
    log: Annotated[Path | None, typer.Argument()] = None,
    p: Annotated[
        str | None, typer.Option("--p", help='Probabilities instead of a log: "1,1,0.1" or "12x1,12x0.1".')
    ] = None,
    round_: Annotated[
        str | None, typer.Option("--round", help='Length of a round, for a log with timestamps: "30min", "1h".')
    ] = None,
    unit: Annotated[
        str | None, typer.Option(help="Unit of timestamps that are numbers: s (default), ms, us or ns.")
    ] = None,
    num_clients: Annotated[int | None, typer.Option(help="Number of clients, if some are not in the log.")] = None,
    num_params: Annotated[
        int | None,
        typer.Option(help="Number of model parameters; default: the pilot's model, or 421,642, the paper's CNN."),
    ] = None,
    correlation: Annotated[
        float | None, typer.Option(help="Correlation of a client's stored update with its next one, if you know it.")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Rounds of the training; default: those of the log, or 10/p_min.")
    ] = None,
    pilot: Annotated[
        str | None,
        typer.Option(
            help="Measure: a task to run with and without a memory for 200 rounds, or the folder of a store with "
            "FedStale's runs."
        ),
    ] = None,
    times: Annotated[
        Path | None,
        typer.Option(help="CSV file round,client,seconds of how long replies took: recommend a deadline instead."),
    ] = None,
    json: Json = False,
) -> None:
    """Say whether to keep stale updates, with which rule, and what the memory costs: keep, do not bother, cannot tell.

    LOG is a participation log: a CSV file with the columns round,client, or with device names and timestamps (columns
    device and time, or device, start and end); lines of 0, 1 and ? with a character for each client; or phones, the log
    of the FLASH study.
    """
    from ..advice import advise as think
    from ..advice import negligible

    if times is not None:
        from .deadline import show_deadline

        if log is not None or p is not None:
            raise InvalidInput("--times cannot be combined with a log or --p: run the command twice")
        show_deadline(times, as_json=json)
        return
    if (log is None) == (p is None):
        raise InvalidInput("give either a participation log or --p")
    if correlation is not None and pilot is not None:
        raise InvalidInput("give either --correlation or --pilot")
    trace = None if log is None else _log(log, num_clients, round_, unit)
    log_says: dict[str, Any] = {}
    if trace is not None:
        from ..log_noise import noise_limits, noise_together, share_seen
        from ..participation import frequencies

        found = frequencies(trace)
        chance = found.probabilities
        if not chance.any():
            raise InvalidInput(f"no client takes part in {log}")
        rounds = trace.num_rounds if rounds is None else positive_int("--rounds", rounds)
        log_says = {
            "noise_together": noise_together(trace, chance),
            "noise_limits": noise_limits(found),
            "seen": share_seen(trace, chance, rounds),
        }
    else:
        if round_ is not None or num_clients is not None or unit is not None:
            raise InvalidInput("--round, --unit and --num-clients are for a log")
        chance = np.array(numbers("--p", p or ""))
        if not ((chance >= 0.0) & (chance <= 1.0)).all():
            raise fail("--p", p, "must be probabilities in [0, 1]")
    quiet = negligible(chance, log_says.get("noise_together"))
    measured, gain, size = _measured(pilot, chance if trace is None else trace, rounds, quiet)
    given = correlation if measured is None else measured
    sizes: Any = {} if num_params is size is None else {"num_params": size if num_params is None else num_params}
    made = think(chance, correlation=given, rounds=rounds, gain=gain, **log_says, **sizes)
    if json:
        never = [] if trace is None else [trace.name(int(k)) for k in np.flatnonzero(chance == 0.0)]
        print_json({**asdict(made), "never_names": never, "measured": None if measured is None else asdict(measured)})
        return
    _show(made, trace, chance, measured, model=num_params is None and size is None)


def _log(log: Path, num_clients: int | None, length: str | None, unit: str | None) -> Trace:
    from ..participation import Trace

    if str(log) == "phones" and not log.exists():
        if num_clients is not None or length is not None or unit is not None:
            raise InvalidInput(
                "--round, --unit and --num-clients are for your own log: the phones are 723, in rounds of 30min"
            )
        from ..participation import read_phones
        from ..tasks.phones_file import fetch_phones

        return read_phones(fetch_phones())
    return Trace.from_csv(log, num_clients, round=length, unit=unit)


def _measured(
    pilot: str | None, who: Trace | Float, rounds: int | None, quiet: bool
) -> tuple[MeasuredCorrelation | None, MeasuredGain | None, int | None]:
    if pilot is None:
        return None, None, None
    from ..simulation.pilot import ROUNDS, run_pilot, stored_pilot
    from ..tasks.defaults import ALIASES
    from ..tasks.names import task_names

    if pilot in (*task_names(), *ALIASES) or not Path(pilot).is_dir():
        if quiet and pilot in task_names():  # other names are refused below
            typer.echo(f"note: no pilot was run on {pilot}: there is hardly any noise of absence", err=True)
            return None, None, None
        found = run_pilot(pilot, who, rounds=min(rounds or ROUNDS, ROUNDS), progress=None)
    else:
        found = stored_pilot(Path(pilot))
    return found.measured, found.gain, found.num_params


def _show(
    advice: Advice, trace: Trace | None, chance: Float, measured: MeasuredCorrelation | None, *, model: bool
) -> None:
    from ..advice_words import size_text
    from ..participation.groups import groups_text, halves, quantile_groups, quantiles_text

    console = make_console()

    def say(text: str, **options: Any) -> None:
        console.print(printable(text), highlight=False, markup=False, **options)

    if trace is not None:
        say(f"Log: {trace.extent()}; {counted(trace.num_clients, 'client')}.")
        _show_log(console, trace)
    say(
        f"N = {advice.num_clients} clients that come   p_avg = {advice.p_avg:.4g}   p_min = {advice.p_min:.4g}   "
        f"p_avg/p_min = {advice.ratio:.4g}   1/p_var = {advice.inverse_p_var:.4g}"
    )
    say(groups_text(chance, halves(chance)))
    if len(np.unique(chance)) > _QUARTERS:
        say(f"Quarters by p: {quantiles_text(chance, quantile_groups(chance, _QUARTERS))}")
    _show_coverage(say, advice, trace, chance)
    text = f"Noise of absence in a round without a memory (U-FedAvg): {advice.noise:.3g} of a client's squared update"
    if advice.noise_limits is not None:
        text += " ({:.3g} to {:.3g} by the confidence limits of p)".format(*advice.noise_limits)
    if advice.noise_together is not None:
        text += f" if clients came independently; {advice.noise_together:.3g} as they come, if their updates are alike"
    if measured is not None and measured.alike is not None and advice.noise_together is not None:
        both = advice.noise + measured.alike * (advice.noise_together - advice.noise)
        text += f"; {both:.3g} with the measured cosine of {measured.alike:.2f} between clients"
    say(text + ".")
    if measured is not None:
        one = np.isnan(measured.error)
        error = " of one run, so that its error is unknown" if one else f" ± {measured.error:.3f}"
        say(f"Measured: correlation {measured.correlation:.3f}{error} ({measured.source}).")
    elif advice.gain is not None:
        say(
            "The correlation was not measured: FedStale diverged, or no client that is sometimes away came twice in "
            "the pilot."
        )
    if advice.noise > 0.0:
        _show_table(console, advice, "as in the log" if trace is not None else "if rounds were independent")
    if advice.gain is not None:
        _show_gain(console, advice.gain)
    kind = " (the paper's MNIST CNN; --num-params for yours)" if model else ""
    sizes = ", ".join(f"{size_text(size)} as {name}" for name, size in advice.storage.items())
    say(f"Server memory for {advice.num_params:,} parameters{kind}: {sizes}.")
    console.print()
    say(advice.sentence, style="bold")


def _show_log(console: Any, trace: Trace) -> None:
    from rich.table import Table

    from ..participation import frequencies, summarise

    found = frequencies(trace)
    table = Table(title="participation probabilities with 95 % confidence intervals")
    for heading in ("client", "p̂", "from", "to"):
        table.add_column(heading, justify="right")
    order = np.argsort(found.probabilities, kind="stable")
    shown = order if len(order) <= _SHOWN else np.concatenate([order[:6], order[-6:]])
    for client in shown:
        row = (found.probabilities[client], found.low[client], found.high[client])
        table.add_row(printable(trace.name(int(client)), 30), *(f"{value:.4f}" for value in row))
    if len(order) > _SHOWN:
        table.caption = f"the 6 rarest and the 6 most frequent of {len(order)}"
    console.print(table)
    if len(order) <= _MOST_PAIRS and trace.known_rounds().all():
        seen = summarise(trace)
        text = f"{seen.online[0]} to {seen.online[1]} online at a time; mean p {seen.mean_p:.3g}"
        text += f", median {seen.median_p:.3g}"
        if np.isfinite(seen.lag1):
            text += f"; a round and the next correlate by {seen.lag1:.2f}"
        if seen.profile is not None and seen.profile.max() > 0:
            text += f"; share online by the time of day {seen.profile.min():.1%} to {seen.profile.max():.1%}"
        console.print(text + ".", highlight=False)


def _show_coverage(say: Any, advice: Advice, trace: Trace | None, chance: Float) -> None:
    if not advice.never:
        return
    never = np.flatnonzero(chance == 0.0)
    names = ", ".join(str(client) if trace is None else printable(trace.name(int(client)), 30) for client in never[:5])
    more = ", …" if advice.never > 5 else ""
    share = advice.num_clients / (advice.num_clients + advice.never)
    say(
        f"Coverage {share:.0%}: {counted(advice.never, 'client')} never took part ({names}{more}). No rule learns from "
        f"what never comes; everything below is about the {advice.num_clients} that come."
    )


def _show_table(console: Any, advice: Advice, where: str) -> None:
    from rich.table import Table

    table = Table(
        title="noise of unbiased rules relative to U-FedAvg, by the correlation of a stored update with the next one"
    )
    for heading in ("correlation", "best β", "FedStale, best β", "FedVARP, β = 1"):
        table.add_column(heading, justify="right")
    for line in advice.table:
        cells = (f"{line.correlation:.2f}", f"{line.beta:.2f}", f"{line.fedstale:.1%}", f"{line.fedvarp:.1%}")
        table.add_row(*cells)
    table.caption = f"{advice.rounds} rounds; {advice.seen:.0%} of the noise is due to clients seen before, {where}"
    console.print(table)
    if advice.correlation is None:
        beta = ", ".join(f"{value:.2f} at {scale:g}" for scale, value in advice.theory_beta.items())
        console.print(f"β* of the paper's bound, by σ_g² in units of σ²/K: {beta}.", highlight=False)


def _show_gain(console: Any, gain: MeasuredGain) -> None:
    from rich.table import Table

    table = Table(title="objective at the end of the pilot, by learning rate; the lower the better")
    for heading in ("rule", *(f"{rate:.3g}" for rate in gain.plain.tried), "best rate", "judged at it"):
        table.add_column(heading, justify="left" if heading == "rule" else "right")
    for one in (gain.plain, gain.memory):
        tried = ("diverged" if np.isnan(value) else f"{value:.3g}" for value in one.tried.values())
        table.add_row(one.rule, *tried, f"{one.rate:.3g}", f"{one.objective:.3g}")
    table.caption = f"{gain.source}; rates chosen on other seeds than those that judge (mean ± standard error)"
    console.print(table)
