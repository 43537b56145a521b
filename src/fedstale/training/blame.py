"""An error of the task's model, loss or metrics, told in one line with the client on whose data it came up."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..checks import InvalidInput, fail, printable
from ..tasks.task import Task

_LENGTH = 200
PASSED_ON = InvalidInput, MemoryError
"""What says itself what is wrong."""


def blame(
    task: Task, done: str, error: Exception, clients: Iterable[tuple[int, Callable[[], object] | None]]
) -> InvalidInput:
    """Build the error that names the client (raise what it returns from `error`).

    Parameters
    ----------
    task
        Whose clients they are.
    done
        What cannot be done with the client: "trained" or "evaluated".
    error
        What the model, the loss or a metric raised.
    clients
        Who was part of it, and for several of them what does the same for one alone: the first that fails is named.
    """
    everybody = []
    for client, alone in clients:
        name = task.client_names[client] if task.client_names else client
        everybody.append(name)
        if alone is None:
            return fail("client", name, f"cannot be {done}: {_line(error)}")
        try:
            alone()
        except Exception as own:
            return fail("client", name, f"cannot be {done}: {_line(own)}")
    return fail("clients", everybody, f"cannot be {done} together: {_line(error)}")


def _line(error: Exception) -> str:
    if isinstance(error, InvalidInput):
        return str(error)
    return printable(f"{type(error).__name__}: {' '.join(str(error).split())}", _LENGTH)
