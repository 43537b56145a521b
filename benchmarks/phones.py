"""The phones of the FLASH study: their five days as a picture, and their statistics beside those of made phones.

    python benchmarks/phones.py FILE [--seeds 5] [--out docs]

FILE is availability-phones.txt. Writes images/phones.png (who was there, and how many at a time, for the trace, days
drawn again and the fitted model) and results/benchmarks/phones.csv: statistics of the trace, and mean ± standard error
over seeds of drawn days and modelled phones, looked at only where the trace is known.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from fedstale.analysis import Estimate
from fedstale.analysis.palette import INDIGO, RED
from fedstale.figures import pyplot
from fedstale.participation import LogSummary, Trace, make, read_phones, summarise
from fedstale.spreadsheet import write_table

ROWS: dict[str, Callable[[Any], Any]] = {
    "mean p": lambda s: s.mean_p,
    "median p": lambda s: s.median_p,
    "share that never came": lambda s: s.share_never,
    "fewest online": lambda s: s.online[0],
    "most online": lambda s: s.online[1],
    "persistence": lambda s: s.stays,
    "correlation of a round with the next": lambda s: s.lag1,
    "mean absolute correlation of two phones": lambda s: s.mean_abs_correlation,
    "mean correlation of two phones": lambda s: s.mean_correlation,
    "quietest half-hour of the day": lambda s: s.profile.min(),
    "busiest half-hour of the day": lambda s: s.profile.max(),
}


def seen(real: Trace, made: Trace) -> LogSummary:
    """Statistics of a made log where the real one is known."""
    matrix = np.where(real.known(), made.matrix(), -1)
    return summarise(replace(Trace.from_matrix(matrix), round_seconds=real.round_seconds))


def draw(real: Trace, made: dict[str, Trace], path: Path) -> None:
    """Who was there, phones sorted by how often; and how many of those of whom something is known."""
    plt = pyplot()
    figure, (above, below) = plt.subplots(2, 1, figsize=(8, 6), height_ratios=(2.2, 1), sharex=True)
    order = np.argsort(-real.counts() / real.known_rounds(), kind="stable")
    days = np.arange(real.num_rounds) / 48
    cells: Any = np.where(real.known(), real.matrix(), np.nan)[:, order].T
    colours = plt.matplotlib.colors.ListedColormap(["#ffffff", INDIGO])
    colours.set_bad("#d9d9d9")
    above.imshow(
        cells, aspect="auto", interpolation="nearest", cmap=colours, extent=(0, days[-1], 723, 0), vmin=0, vmax=1
    )
    above.set(
        ylabel="phone, most frequent first",
        title="723 phones over five days: there (blue), not (white), not known (grey)",
    )
    above.grid(visible=False)
    for (label, trace), colour in zip({"trace": real, **made}.items(), (INDIGO, RED, "#7f7f7f"), strict=False):
        share = (trace.matrix() & real.known()).sum(axis=1) / real.known().sum(axis=1)
        below.plot(days, share, color=colour, label=label, linewidth=1.6 if label == "trace" else 1.0)
    below.set(xlabel="day", ylabel="share online", ylim=(0, 0.19), xlim=(0, days[-1]))
    below.yaxis.set_major_formatter(plt.matplotlib.ticker.PercentFormatter(1.0, 0))
    below.legend(ncols=3, loc="upper right")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)


def main() -> None:
    """Draw, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("docs"))
    options = parser.parse_args()
    real = read_phones(options.file)
    kinds = {kind: make("phones", path=options.file, kind=kind) for kind in ("bootstrap", "model")}
    made = {
        kind: [Trace.record(process, seed, real.num_rounds) for seed in range(options.seeds)]
        for kind, process in kinds.items()
    }
    draw(
        real,
        {"days drawn again": made["bootstrap"][0], "fitted model": made["model"][0]},
        options.out / "images" / "phones.png",
    )
    truth, found = summarise(real), {kind: [seen(real, trace) for trace in traces] for kind, traces in made.items()}
    rows = []
    for name, value in ROWS.items():
        estimates = [Estimate.of([float(value(one)) for one in found[kind]]) for kind in kinds]
        rows.append(
            [name, f"{value(truth):.4g}", *(part for e in estimates for part in (f"{e.mean:.4g}", f"{e.error:.2g}"))]
        )
    head = ["statistic", "trace", "bootstrap", "bootstrap error", "model", "model error"]
    write_table(options.out / "results" / "benchmarks" / "phones.csv", head, rows)
    for row in rows:
        print(" | ".join(row))


if __name__ == "__main__":
    main()
