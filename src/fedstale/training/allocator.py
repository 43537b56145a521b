"""Memory that a step has freed is there for the next step, instead of going back to the operating system.

A step of a convolutional model allocates and frees tens of megabytes. glibc's malloc returns such memory, at once or
now and then, so that later steps touch fresh pages again: thousands of page faults a step of the paper's MNIST CNN
(benchmarks/profile_rounds.py counts them). Two settings of malloc let it keep up to 256 MiB for each thread. They hold
for the whole process and cannot be taken back; what the user has set by environment variables is left alone, and so are
other C libraries. No engine does this by itself: the simulator does, unless the setting `keep_freed_memory` is False.
"""

from __future__ import annotations

import ctypes
import os
import sys

_KEPT = 256 << 20
"""Bytes: larger blocks are mapped one by one, and more than this at the end of an arena is given back."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
_USERS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Tell malloc to keep freed memory, in the whole process and for good; whether that was done."""
    if sys.platform != "linux" or any(name in os.environ for name in _USERS):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # not glibc
        return False
    # The first alone would not do: setting either ends malloc's own adjustment of the other.
    return all([mallopt(_TRIM_THRESHOLD, _KEPT) == 1, mallopt(_MMAP_THRESHOLD, _KEPT) == 1])
