"""The colours: a method has the same one in every picture, page and terminal, whatever stands beside it.

Eight colours, found by a search for what is furthest apart with normal sight and with each of the three colour
blindnesses, among colours with a contrast of 3:1 against both a white and a dark page (the tests compute both). Dashes
tell apart what shares a colour, so that colour alone never tells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from zlib import crc32

from .methods import EVERYBODY, SAME_AS

COLOURS = "#84909c", "#d87800", "#009ce4", "#6060d8", "#b43ca8", "#cc2424", "#3c843c", "#906060"
GREY, _, SKY, INDIGO, _, RED, GREEN, BROWN = COLOURS
DASHES: tuple[tuple[int, ...], ...] = ((), (8, 3), (2, 3), (8, 3, 2, 3), (14, 4), (14, 3, 2, 3), (8, 3, 2, 3, 2, 3))
"""Lengths of strokes and gaps in pixels; empty is a solid line."""

SEQUENTIAL = ("#ffffd9", "#c7e9b4", "#41b6c4", "#225ea8", "#081d58")
"""Of β_opt from 0 to 1, equally spaced; lightness falls all the way, so that it reads without colour, too."""
DIVERGING = ("#b23c28", "#f4c8b0", "#f7f7f7", "#aad0ec", "#2166ac")
"""Of a difference: worse, equal, better."""

_METHODS = (
    # solid, one for each colour
    *("FedAvg", "U-FedAvg", "FedVARP", "U-FedVARP"),
    *("FedStale β=0.5", "FedStale β=auto", "Tempered FedStale", "FedStale β=0.8"),
    # dashed
    *("MIFA", "MIFA, waiting", "FedLaAvg", "AFA-CD"),
    *("AFA-CS", "FedStale β=auto-per-client", "FedAU", "SCAFFOLD"),
    # dotted
    *("SVRG", "SCSG", "SARAH", "SPIDER"),
    *("FedProx", "FedStale β=auto, lowrank:4", "FedDyn", "FedStale β=auto, clustered:4"),
    # dashes and dots
    *("FedStale+adagrad β=auto", "FedStale+adam β=auto", "FedStale+momentum β=auto", "FedStale+yogi β=auto"),
    *("FedStale β=0.2", "FedAWE", "FedSteer", "CA-Fed"),
)
_ASYNCHRONOUS = "FedAsync", "FedBuff", "U-FedBuff", "CA²FL", "ACE", "ACED", "AREA", "FedStaleAsync"
"""A dash and two dots: the last row."""
_LIMIT = 5 * len(COLOURS) - 1
_LAST = (len(DASHES) - 1) * len(COLOURS)
_SLOTS = {label: slot for slot, label in enumerate(_METHODS)} | {EVERYBODY: _LIMIT}
_SLOTS |= {label: slot for slot, label in enumerate(_ASYNCHRONOUS, _LAST)}
_OTHERS = [slot for slot in range(4 * len(COLOURS), _LAST) if slot != _LIMIT]
"""Styles that no method above has or will have: for all others."""


@dataclass(frozen=True)
class Style:
    """How a line is drawn."""

    colour: str
    dashes: tuple[int, ...] = ()


SOLID = Style(RED)
"""Where there is one line, and no other to tell it from."""


def style(method: str, repetition: int = 0) -> Style:
    """Return the style of a method by its label.

    A method that is not listed above gets a style by a checksum of its label: always the same one.

    Parameters
    ----------
    method
        As `method_label` has it.
    repetition
        0 for the first line of the method in a chart; further ones keep its colour and get other dashes, as long as
        there are any.
    """
    for label, same in SAME_AS.items():
        method = same if method == f"{label} ({same})" else method
    slot = _SLOTS.get(method, _OTHERS[crc32(method.encode()) % len(_OTHERS)])
    more, dash = divmod(repetition, len(DASHES))
    return Style(COLOURS[(slot + more) % len(COLOURS)], DASHES[(slot // len(COLOURS) + dash) % len(DASHES)])


def styles(methods: Sequence[str]) -> list[Style]:
    """Return a style for each line of a chart, of which several may be of one method."""
    return [style(method, k) for method, k in zip(methods, repetitions(methods), strict=True)]


def repetitions(methods: Sequence[str], kept: Mapping[int, int] = MappingProxyType({})) -> list[int]:
    """Return which repetition of its method each line is drawn as, so that no two lines look alike.

    Parameters
    ----------
    methods
        The method of each line.
    kept
        Repetitions that lines have already, by the place of the line: they keep them, whatever else has come or gone.
    """
    most = len(DASHES) * len(COLOURS)
    taken = {style(methods[at], k) for at, k in kept.items()}
    found: list[int] = []
    for at, method in enumerate(methods):
        free = (k for k in range(most) if style(method, k) not in taken)
        found.append(kept[at] if at in kept else next(free, 0))
        taken.add(style(method, found[-1]))
    return found


def blend(stops: Sequence[str], share: float) -> str:
    """Return the colour at a share (0 to 1) of the way through equally spaced stops."""
    at = min(max(share, 0.0), 1.0) * (len(stops) - 1)
    k = min(int(at), len(stops) - 2)
    ends = ([int(stop[i : i + 2], 16) for i in (1, 3, 5)] for stop in stops[k : k + 2])
    return "#" + "".join(f"{round(a + (b - a) * (at - k)):02x}" for a, b in zip(*ends, strict=True))
