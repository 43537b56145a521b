"""One total order: whatever the interleaving in which equal times were put in, the same things happen."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from fedstale.clock import Event, EventKind, EventQueue

events = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(EventKind), st.integers(0, 4)), unique=True, max_size=40
).map(lambda found: [Event(float(time), kind, device, 1) for time, kind, device in found])


@given(events, st.randoms(use_true_random=False))
def test_the_order_of_pushes_does_not_matter(found: list[Event], random) -> None:  # type: ignore[no-untyped-def]
    shuffled = random.sample(found, len(found))
    pushed, made = EventQueue(), EventQueue(shuffled)
    for event in found:
        pushed.push(event)
    expected = sorted(found)
    assert [pushed.pop() for _ in found] == expected
    assert [made.pop() for _ in found] == expected


@given(events)
@settings(max_examples=25)
def test_presence_comes_before_replies_of_the_same_moment(found: list[Event]) -> None:
    queue = EventQueue(found)
    out = [queue.pop() for _ in found]
    for one, other in pairwise(out):
        assert (one.time, one.kind, one.device) < (other.time, other.kind, other.device)
    assert queue.next_time == float("inf")
