"""Work in time: it ends in a reply, or in a loss where the device leaves; and what is saved is all there is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedstale as fs
from fedstale.clock import Always, Availability, Clock, Equal, EventKind, Intervals, LogNormal, Outcome, Slots
from fedstale.participation import Bernoulli, Cyclic, Markov, Trace

SLOW = Equal(steps_per_second=1.0, down=1.0, up=1.0)


def test_intervals_say_who_is_there_and_until_when() -> None:
    there = Intervals(2, [0, 0, 1], [5.0, 0.0, 3.0], [9.0, 2.0, 4.0])
    assert there.span(0, 0, 0.0) == (True, 2.0)
    assert there.span(0, 0, 2.0) == (False, 5.0)
    assert there.span(0, 0, 8.9) == (True, 9.0)
    assert there.span(0, 0, 9.0) == (False, float("inf"))
    assert there.span(0, 1, 0.0) == (False, 3.0)
    with pytest.raises(fs.InvalidInput, match="must not overlap"):
        Intervals(1, [0, 0], [0.0, 1.0], [2.0, 3.0])


@pytest.mark.parametrize("seconds", [0.1, 1.0, 7.3])
@pytest.mark.parametrize("process", [Bernoulli([0.5, 0.9, 1.0]), Markov([0.3, 0.3], 0.9), Cyclic([0, 3], 7)], ids=repr)
def test_a_process_in_time_is_there_when_its_slot_says_so(process: Any, seconds: float) -> None:
    there = Slots(process, seconds)
    for device in range(process.num_clients):
        time, slots = 0.0, list[bool]()
        while len(slots) < 200:
            here, until = there.span(4, device, time)
            assert until > time
            slots += [here] * round((until - time) / seconds)
            time = until
        assert slots[:200] == [device in process.available(4, slot) for slot in range(200)]


def test_a_trace_that_has_ended_says_so() -> None:
    there = Slots(Trace(1, 3, [0, 1], [0, 0]), 10.0)
    assert there.span(0, 0, 0.0) == (True, 20.0)
    assert there.span(0, 0, 25.0) == (False, 30.0)
    with pytest.raises(fs.InvalidInput, match="the trace has ended after 3 slots"):
        there.span(0, 0, 30.0)


def test_work_ends_in_a_reply_or_with_the_device_that_leaves() -> None:
    clock = Clock(SLOW, Intervals(2, [0, 1], [0.0, 0.0], [100.0, 6.0]), 2)
    assert clock.ask(0, 0, 1.0, 5.0, 1.0).replies
    assert not clock.ask(1, 0, 1.0, 5.0, 1.0).replies
    with pytest.raises(fs.InvalidInput, match="trains one model at a time"):
        clock.ask(0, 0, 1.0, 5.0, 1.0)
    seen = []
    while clock.now < 100.0:
        event, work = clock.next() or (None, None)
        assert event is not None
        seen.append((event.time, event.kind, event.device, None if work is None else work.end - work.start))
        if event.kind is EventKind.REPLY and work is not None:
            clock.ledger.add(work, clock.now, Outcome.USED)
    assert seen == [
        (6.0, EventKind.PRESENCE, 1, None),
        (6.0, EventKind.LOST, 1, 6.0),
        (7.0, EventKind.REPLY, 0, 7.0),
        (100.0, EventKind.PRESENCE, 0, None),
    ]
    assert clock.ledger.wasted.tolist() == [0.0, 6.0]
    assert clock.ledger.busy.tolist() == [7.0, 6.0]
    assert clock.idle.tolist() == [93.0, 0.0]


def test_intervals_as_slots_of_a_trace_are_the_same_presence() -> None:
    """What a simulation replays of intervals, with slots as fine as their ends, is what they say."""
    begins, ends = [5.0, 0.0, 3.0, 7.0], [9.0, 2.0, 4.0, 12.0]
    exact = Intervals(2, [0, 0, 1, 1], begins, ends)
    slots = Slots(Trace.from_intervals(["a", "a", "b", "b"], begins, ends, round=1), 1.0)
    clocks = [Clock(SLOW, there, 2) for there in (exact, slots)]
    for time in np.arange(0.5, 12.0):
        for clock in clocks:
            while clock.next(time) is not None:
                pass
        assert clocks[0].everybody_there.tolist() == clocks[1].everybody_there.tolist()
        assert clocks[0].idle.tolist() == clocks[1].idle.tolist()


def test_a_reply_at_the_very_moment_of_a_deadline_is_in_time() -> None:
    clock = Clock(SLOW, None, 2)
    clock.ask(0, 0, 0.0, 5.0, 0.0)
    clock.ask(1, 0, 0.0, 6.0, 0.0)
    assert clock.next(5.0) is not None
    assert clock.next(5.0) is None
    assert clock.now == 5.0


def test_work_that_was_called_off_does_not_end_other_work() -> None:
    clock = Clock(SLOW, None, 1)
    clock.ask(0, 0, 0.0, 5.0, 0.0)
    assert clock.next(3.0) is None
    clock.call_off(0)
    clock.ask(0, 1, 0.0, 5.0, 0.0)
    event, work = clock.next() or (None, None)
    assert event is not None
    assert work is not None
    assert (event.time, work.version) == (8.0, 1)
    assert clock.ledger.wasted.tolist() == [3.0]


def play(clock: Clock, events: int) -> list[tuple[float, int, int]]:
    """A server that asks whoever is idle, in a fixed order."""
    seen: list[tuple[float, int, int]] = []
    for _ in range(events):
        for device in clock.everybody_there.tolist():
            if device not in clock.work:
                clock.ask(device, len(seen), 10.0, 5.0, 10.0)
        event, work = clock.next() or (None, None)
        if event is None:
            break
        if work is not None and event.kind is EventKind.REPLY:
            clock.ledger.add(work, clock.now, Outcome.USED)
        seen.append((event.time, int(event.kind), event.device))
    return seen


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**20), st.integers(0, 60), st.booleans(), st.booleans())
def test_a_clock_that_was_saved_goes_on_as_if_nothing_had_happened(
    seed: int, cut: int, equal: bool, slots: bool
) -> None:
    """Equal devices finish at equal times: the queue is made anew, and the order of ties must not depend on it."""

    def make() -> Clock:
        there: Availability = Slots(Bernoulli([0.5] * 6), 0.7) if slots else Always(6)
        return Clock(Equal() if equal else LogNormal(), there, 6, seed)

    whole = make()
    expected = play(whole, 80)
    first = make()
    got = play(first, cut)
    second = make()
    second.restore({name: np.array(array) for name, array in first.arrays().items()})

    def go_on() -> list[tuple[float, int, int]]:
        seen: list[tuple[float, int, int]] = []
        for _ in range(80 - cut):
            for device in second.everybody_there.tolist():
                if device not in second.work:
                    second.ask(device, cut + len(seen), 10.0, 5.0, 10.0)
            event, work = second.next() or (None, None)
            assert event is not None
            if work is not None and event.kind is EventKind.REPLY:
                second.ledger.add(work, second.now, Outcome.USED)
            seen.append((event.time, int(event.kind), event.device))
        return seen

    assert got + go_on() == expected
    for name, array in whole.arrays().items():
        assert np.array_equal(array, second.arrays()[name]), name
