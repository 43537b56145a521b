"""The cost of an event: a buffered server over many devices, without any training. Bar: 10 µs an event.

    python benchmarks/clock.py [--devices 100000] [--events 1000000] [--json FILE]

Devices are log-normal; with `always` everybody is always there, with `comes and goes` presence follows a Markov chain
with slots of one typical piece of work. An event is a reply, a loss, or a change of presence; what is measured is all
bookkeeping around it: asking, the queue, the ledger, who is idle, and drawing whom to ask. Seconds are those of the
processor, so that other work on the machine does not count.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path

import numpy as np

from fedstale.clock import Always, Availability, Clock, EventKind, IdleDevices, LogNormal, Outcome, Slots
from fedstale.participation import Markov
from fedstale.randomness import generator

_BAR = 10.0
_SIZE, _LOTS = 100, 4096


def run(availability: Availability, events: int, concurrency: int) -> dict[str, float]:
    """Let a buffered server run over so many events, and return the seconds and what happened."""
    n = availability.num_devices
    started = time.process_time()
    clock = Clock(LogNormal(steps_per_second=10.0), availability, n, 0)
    ready, waiting = IdleDevices(clock.everybody_there.tolist()), list[int]()
    set_up = time.process_time() - started
    lots: list[float] = []
    counts, version, largest = dict.fromkeys(EventKind, 0), 0, 0
    started = time.process_time()
    for number in range(events):
        while len(ready) and len(clock.work) < concurrency:
            if not lots:
                lots = generator(0, "whom to ask", number).random(_LOTS).tolist()
            clock.ask(ready.take(lots.pop()), version, 1e5, 5.0, 1e5)
        found = clock.next()
        if found is None:
            break
        event, work = found
        counts[event.kind] += 1
        if work is not None and event.kind is EventKind.REPLY:
            clock.ledger.add(work, clock.now, Outcome.USED)
            waiting.append(event.device)
        elif event.kind is EventKind.PRESENCE and event.device not in clock.work:
            if clock.there(event.device):
                ready.add(event.device)
            else:
                ready.remove(event.device)
        if len(waiting) == _SIZE:
            version += 1
            for device in waiting:
                if clock.there(device):
                    ready.add(device)
            waiting = []
        largest = max(largest, clock.queued)
    seconds = time.process_time() - started
    return {
        "devices": n,
        "events": sum(counts.values()),
        "microseconds_per_event": 1e6 * seconds / sum(counts.values()),
        "set_up_seconds": set_up,
        "replies": counts[EventKind.REPLY],
        "lost": counts[EventKind.LOST],
        "presence": counts[EventKind.PRESENCE],
        "largest_queue": largest,
        "virtual_seconds": clock.now,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    """Measure, print, and say whether the bar was met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=100_000)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    n = given.devices
    worlds: dict[str, Availability] = {
        "always": Always(n),
        "comes and goes": Slots(Markov(np.full(n, 0.5), 0.8), 1.0),
    }
    results = {}
    for name, world in worlds.items():
        found = run(world, given.events, n // 10)
        results[name] = found
        verdict = "met" if found["microseconds_per_event"] <= _BAR else "missed"
        print(
            f"{name}: {found['events']:,.0f} events of {n:,} devices, {found['microseconds_per_event']:.2f} µs each "
            f"(bar {_BAR:g} µs {verdict}), queue ≤ {found['largest_queue']:,.0f}, {found['peak_mb']:.0f} MB"
        )
    if given.json is not None:
        given.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
