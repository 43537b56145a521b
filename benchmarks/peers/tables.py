"""The race's results: as a CSV file, as summaries, and what is wrong with them."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.peers.work import WORKS

OURS, YARDSTICK, BETTER_FLOWER = "fedstale, FedAvg", "plain PyTorch loop", "Flower, 2 actors × 1 thread"
ACCURACIES = "peers-accuracy.csv"
COLUMNS = (
    "work",
    "contender",
    "repetition",
    "startup",
    "seconds",
    "accuracy",
    "samples",
    "peak",
    "threads",
    "training_share",
    "evaluation_share",
    "versions",
    "error",
)
Entry = dict[str, Any]


def write(folder: Path, results: list[Entry], name: str = "peers.csv") -> None:
    """Write one line per contender, work and repetition; the seconds of all rounds stand in one field."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / name, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        for entry in results:
            row = {key: entry[key] for key in COLUMNS if key in entry}
            for key, value in row.items():
                if isinstance(value, float):
                    row[key] = f"{value:.6g}"
            row["seconds"] = " ".join(f"{value:.5g}" for value in entry.get("seconds", ()))
            row["versions"] = " ".join(f"{key}={value}" for key, value in entry.get("versions", {}).items())
            writer.writerow(row)


def read(folder: Path, name: str = "peers.csv") -> list[Entry]:
    """Read what `write` wrote."""
    results: list[Entry] = []
    with open(folder / name, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            entry: Entry = {"work": row["work"], "contender": row["contender"], "repetition": int(row["repetition"])}
            if row["error"]:
                results.append({**entry, "error": row["error"]})
                continue
            for key in ("startup", "accuracy", "training_share", "evaluation_share"):
                if row[key]:
                    entry[key] = float(row[key])
            for key in ("samples", "peak", "threads"):
                entry[key] = int(row[key])
            entry["seconds"] = [float(value) for value in row["seconds"].split()]
            entry["versions"] = dict(pair.split("=", 1) for pair in row["versions"].split())
            results.append(entry)
    return results


@dataclass(frozen=True)
class Summary:
    """One contender in one work.

    Attributes
    ----------
    seconds, low, high
        Median and quartiles of the seconds of a round, over all rounds of all repetitions but each one's first.
    mean
        The median over repetitions of the mean round, evaluations included.
    startup, peak
        Medians: seconds from starting the process to the end of the first round, and bytes.
    accuracy
        At the end of the longest repetition.
    repetitions, rounds
        How many.
    """

    contender: str
    seconds: float
    low: float
    high: float
    mean: float
    startup: float
    peak: float
    accuracy: float
    repetitions: int
    rounds: int
    training_share: float
    evaluation_share: float


def summaries(results: list[Entry], work: str) -> dict[str, Summary | str]:
    """Summarise a work, contender by contender; one that failed has its error line."""
    found: dict[str, Summary | str] = {}
    for name in dict.fromkeys(entry["contender"] for entry in results if entry["work"] == work):
        own = [entry for entry in results if entry["work"] == work and entry["contender"] == name]
        good = [entry for entry in own if "error" not in entry and entry["seconds"]]
        found[name] = _summary(name, good) if good else str(own[0].get("error", "no round was timed"))
    return found


def _summary(name: str, entries: list[Entry]) -> Summary:
    rounds = [value for entry in entries for value in entry["seconds"]]
    low, middle, high = quantiles(rounds, n=4) if len(rounds) > 1 else rounds * 3
    longest = max(entries, key=lambda entry: len(entry["seconds"]))

    def middle_of(key: str) -> float:
        values = [entry[key] for entry in entries if key in entry]
        return float(median(values)) if values else math.nan

    return Summary(
        name,
        middle,
        low,
        high,
        median(sum(entry["seconds"]) / len(entry["seconds"]) for entry in entries),
        middle_of("startup"),
        middle_of("peak"),
        longest["accuracy"],
        len(entries),
        len(rounds),
        middle_of("training_share"),
        middle_of("evaluation_share"),
    )


def accuracies(folder: Path) -> dict[str, tuple[int, dict[str, float]]]:
    """By work: rounds, and each contender's accuracy after them, where runs of their own decide that."""
    found: dict[str, tuple[int, dict[str, float]]] = {}
    if not (folder / ACCURACIES).exists():
        return found
    for entry in read(folder, ACCURACIES):
        if "error" not in entry:
            _, values = found.setdefault(entry["work"], (len(entry["seconds"]) + 1, {}))
            values[entry["contender"]] = entry["accuracy"]
    return found


def problems(results: list[Entry], apart: dict[str, tuple[int, dict[str, float]]] | None = None) -> list[str]:
    """What does not agree: other numbers of samples than the work says, accuracies far from the plain loop's.

    `apart` is what `accuracies` returns.
    """
    told = []
    for name, work in WORKS.items():
        found = summaries(results, name)
        if apart and name in apart:
            other = apart[name][1]
            found = {
                label: replace(one, accuracy=other[label]) if isinstance(one, Summary) else one
                for label, one in found.items()
                if label in other or isinstance(one, str)
            }
        yardstick = found.get(YARDSTICK)
        for entry in results:
            if entry["work"] == name and "error" not in entry:
                wanted = work.samples * (len(entry["seconds"]) + 1)
                if entry["samples"] != wanted:
                    told.append(f"{name}, {entry['contender']}: {entry['samples']} samples instead of {wanted}")
        for label, one in found.items():
            if isinstance(one, str):
                told.append(f"{name}, {label}: {one}")
            elif isinstance(yardstick, Summary) and "bfloat16" not in label:
                distance = abs(one.accuracy - yardstick.accuracy)
                if not distance <= work.tolerance:
                    told.append(
                        f"{name}, {label}: accuracy {one.accuracy:.3f}, {YARDSTICK} {yardstick.accuracy:.3f}, "
                        f"tolerance {work.tolerance}"
                    )
    return told


def line(entry: Entry) -> str:
    """One run, for the terminal."""
    who = f"{entry['work']:<9} {entry['repetition'] + 1} {entry['contender']:<30}"
    if "error" in entry:
        return f"{who} {entry['error']}"
    seconds = entry["seconds"]
    middle = f"{1e3 * median(seconds):9.2f} ms" if seconds else "-"
    peak = f"{entry['peak'] / 2**20:6.0f} MiB"
    return f"{who} {middle} a round, start {entry['startup']:5.1f} s, {peak}, accuracy {entry['accuracy']:.3f}"
