"""Ctrl-C between two rounds: what must be whole is finished first, then the interrupt is heard.

    with postponed("round") as interrupt:
        while not interrupt.asked:
            ...  # never cut in the middle
    # here KeyboardInterrupt is raised, if it was asked for

SIGTERM is heard likewise. A second signal ends the process at once, as kill -9 would: what is saved then is the last
whole checkpoint. Signals that somebody else handles (a handler of the user's, Flower's, one that ignores them) are
left alone, and off the main thread there are none; whoever saves must therefore still ask whether a round is whole.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

_USUAL: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
"""The signals that are postponed, with the handlers that Python starts with."""
_ONE_KEYSTROKE = 0.2
"""Seconds in which signals count as one: `timeout` and some launchers send each to the process and to its group."""


class _Interrupt:
    """Whether an interrupt was asked for while it had to wait.

    Attributes
    ----------
    asked
        Whether a signal came.
    """

    def __init__(self, what: str) -> None:
        self.asked = False
        self._what = what
        self._open = False
        self._former: dict[int, Any] = {}

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Let signals through for a while, as KeyboardInterrupt: for what may take long and leaves nothing behind."""
        if self.asked:
            raise KeyboardInterrupt
        self._open = True
        try:
            yield
        finally:
            self._open = False

    @contextmanager
    def _closed(self) -> Iterator[None]:
        """Postpone again within `heard`."""
        before, self._open = self._open, False
        try:
            yield
        finally:
            self._open = before
        if before and self.asked:
            raise KeyboardInterrupt

    def _install(self) -> None:
        for number, usual in _USUAL.items():
            if signal.getsignal(number) == usual:
                self._former[number] = usual
                signal.signal(number, self._hear)

    def _remove(self) -> None:
        for number, usual in self._former.items():
            signal.signal(number, usual)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.asked and not self._open:  # the same keystroke
            return
        self.asked = True
        if self._open:  # some libraries swallow it while they are being imported: `asked` stays
            raise KeyboardInterrupt
        if sys.stderr is not None and sys.stderr.isatty():
            with suppress(OSError, ValueError):  # print may be what is being interrupted
                os.write(
                    sys.stderr.fileno(),
                    f"\nstopping after this {self._what}; press Ctrl-C again to stop at once\n".encode(),
                )
        time.sleep(_ONE_KEYSTROKE)
        for number in self._former:
            signal.signal(number, signal.SIG_DFL)


_present: _Interrupt | None = None  # signals belong to the process


@contextmanager
def postponed(what: str) -> Iterator[_Interrupt]:
    """Let Ctrl-C and SIGTERM wait until the end of the block, which may look at `asked` and end early.

    Parameters
    ----------
    what
        What is finished first, as the user is told: "round", "batch", …

    Within another such block this is the outer one. Off the main thread it does nothing.
    """
    global _present
    if threading.current_thread() is not threading.main_thread():
        yield _Interrupt(what)
        return
    if _present is not None:
        with _present._closed():
            yield _present
        return
    _present = interrupt = _Interrupt(what)
    try:
        interrupt._install()
        yield interrupt
    finally:
        _present = None
        interrupt._remove()
    if interrupt.asked:
        raise KeyboardInterrupt
