"""How soon the board shows a large store, and how much memory its server takes.

    python benchmarks/board.py [--runs 5000] [--rounds 500] [--repeats 5] [--store FOLDER] [--json FILE]

Makes a store (in a temporary folder, unless --store names one to make once and use again), starts `fedstale board` on
it as a process of its own, and opens the page in chromium, each time with an empty cache. Times are the browser's own,
from the start of the navigation (or the click) to the frame after the table, the curves or the heat map is in the page;
the memory is the server's peak (VmHWM), after all of this.

Targets: first table in < 2 s; server below 500 MB.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from fedstale.paper.grids import BETAS, P_MIN, SWAPS
from fedstale.simulation import make_settings
from fedstale.store import Store
from fedstale.store.recorder import Recorder

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.board import browser

CURVES = 20
HISTORIES = 50

# Waits for a condition and notes the time of the frame after the one in which it came true.
WHEN = """
window.when = (condition) => new Promise((resolve) => {
  const look = () => condition()
    ? requestAnimationFrame(() => requestAnimationFrame(() => resolve(performance.now())))
    : requestAnimationFrame(look);
  look();
});
window.firstTable = window.when(() => document.querySelectorAll("#rows tr").length > 0);
window.firstCurve = window.when(() => document.querySelector("#curve-graph .scatterlayer .trace"));
"""
CHOOSE = """(ids) => {
  const start = performance.now();
  dash_clientside.set_props("chosen", {data: ids});
  const lines = "#curve-graph .scatterlayer .trace .lines path";
  return window.when(() => document.querySelectorAll(lines).length >= ids.length).then((end) => end - start);
}"""
HEAT = """() => {
  const start = performance.now();
  document.querySelector("button[data-value=sweep]").click();
  return window.when(() => document.querySelector("[data-cell]")).then((end) => end - start);
}"""


def fill(folder: Path, runs: int, rounds: int) -> None:
    """Write a sweep as the heat map wants it, every round recorded; of the last runs who came, too."""
    grid = [
        make_settings(p_min=p, swap=swap, beta=beta, seed=seed, lr=lr, rounds=rounds)
        for seed in range(100)
        for lr in (0.01, 0.0316, 0.1, 0.316, 1.0)
        for p in P_MIN
        for swap in SWAPS
        for beta in (*BETAS, "auto")
    ][:runs]
    rng = np.random.default_rng(0)
    # Recording every round of every run would take most of the time; so some histories are recorded, as any run would,
    # and every run is written with one of them.
    histories = [history(rng, rounds, came=k == 0) for k in range(HISTORIES)]
    began = time.monotonic()
    with Store.open(folder) as store:
        for k, one in enumerate(grid):
            # The newest runs are the ones that the board opens with.
            source = histories[0 if k >= runs - CURVES else k % HISTORIES]
            with store.start(one.record(), name=one.label, sweep="grid", rounds_total=rounds) as run:
                run._recorder = Recorder(source.last, source.summary)
                run._recorder._unsaved = dict(source._unsaved)
            if k % 100 == 99:
                print(f"\r{k + 1} runs written, {time.monotonic() - began:.0f} s", end="", flush=True)
    print()


def history(rng: np.random.Generator, rounds: int, *, came: bool) -> Recorder:
    """Record the rounds of one run; who came, too, where wanted."""
    noise = rng.normal(0, 0.01, (6, rounds))
    rise = 1 - np.exp(-np.arange(rounds) / (rounds / 10))
    columns = {
        "accuracy": 0.9 * rise + noise[0],
        "test_loss": 2 - 1.5 * rise + noise[1],
        "accuracy_group0": 0.92 * rise + noise[2],
        "accuracy_group1": 0.85 * rise + noise[3],
        "beta": 0.5 + noise[4],
        "update_norm": 1 + noise[5],
        "bytes_up": np.full(rounds, 1e5),
        "bytes_down": np.full(rounds, 1e5),
        "seconds": np.full(rounds, 0.01),
    }
    recorder = Recorder(-1, {})
    for t, values in enumerate(zip(*(column.tolist() for column in columns.values()), strict=True)):
        who = np.flatnonzero(rng.random(24) < 0.5) if came else None
        last = {"accuracy_tail": values[0]} if t == rounds - 1 else {}
        recorder.add(t, dict(zip(columns, values, strict=True)) | last, who, None)
    return recorder


def peak(process: int) -> float:
    """Megabytes that a process took at most."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    return int(found[1]) / 1024 if found else float("nan")


def measure(folder: Path, repeats: int) -> dict[str, Any]:
    """Start the board and look at it."""
    from playwright.sync_api import sync_playwright

    with Store.open(folder, read_only=True) as store:
        ids = [info.id for info in store.runs(limit=2 * CURVES)]
    seconds: dict[str, list[float]] = {name: [] for name in ("first table", "first curve", "20 curves", "heat map")}
    began = time.perf_counter()
    command = [sys.executable, "-m", "fedstale", "board", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server, sync_playwright() as playwright:
        try:
            said = server.stdout.readline() if server.stdout else ""
            address = re.search(r"http://\S+", said)
            if address is None:
                raise SystemExit(f"the board did not start: {said}")
            start = time.perf_counter() - began
            for _ in range(repeats):
                with tempfile.TemporaryDirectory() as profile:
                    context = playwright.chromium.launch_persistent_context(
                        profile,
                        executable_path=browser.find(),
                        args=list(browser.FLAGS),
                        viewport={"width": 1440, "height": 900},
                    )
                    context.add_init_script(WHEN)
                    page = context.pages[0]
                    page.goto(address[0])
                    seconds["first table"].append(page.evaluate("window.firstTable") / 1e3)
                    seconds["first curve"].append(page.evaluate("window.firstCurve") / 1e3)
                    seconds["20 curves"].append(page.evaluate(CHOOSE, ids[:CURVES]) / 1e3)
                    seconds["heat map"].append(page.evaluate(HEAT) / 1e3)
                    context.close()
            memory = peak(server.pid)
        finally:
            server.terminate()
    found: dict[str, Any] = {"server start": start, "server peak MB": memory}
    found["store MB"] = (folder / "store.sqlite").stat().st_size / 1e6
    for name, values in seconds.items():
        found[name] = statistics.median(values)
        found[f"{name}, all"] = values
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=5, help="times that the page is opened")
    parser.add_argument("--store", type=Path, help="a folder for the store, used again when it is there")
    parser.add_argument("--json", type=Path, help="write the numbers to this file too")
    arguments = parser.parse_args()
    reason = browser.install()
    if reason:
        raise SystemExit(reason)
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.store or Path(temporary) / "store"
        if not (folder / "store.sqlite").exists():
            fill(folder, arguments.runs, arguments.rounds)
        found = measure(folder, arguments.repeats)
    for name, value in found.items():
        if not isinstance(value, list):
            unit = "" if name.endswith("MB") else " s"
            spread = found.get(f"{name}, all")
            print(f"{name:<16} {value:9.2f}{unit}" + (f"  [{min(spread):.2f}, {max(spread):.2f}]" if spread else ""))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
