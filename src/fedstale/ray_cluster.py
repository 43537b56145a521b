"""The connection to a Ray cluster (extra `ray`): one that runs already, or one that is started on this machine."""

from __future__ import annotations

import os
from typing import Any

from .checks import InvalidInput
from .extras import missing


def connect(address: str | None = None) -> tuple[Any, bool]:
    """Connect this process to Ray and return the module `ray`, and whether the connection was made here.

    Parameters
    ----------
    address
        Of a running cluster ("auto" finds it on this machine); None or "local" starts one here. A process that is
        connected already stays where it is.
    """
    try:
        import ray
    except ImportError:
        raise InvalidInput(missing("ray")) from None
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # What Ray will do one day with workers that were given no GPU: their environment is left as it is.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if ray.is_initialized():
        return ray, False
    try:  # without an address Ray would join a cluster that runs here, or that the environment names
        ray.init(address=address or "local", include_dashboard=False, log_to_driver=False, logging_level="error")
    except Exception as error:  # Ray raises plain exceptions, too, as when its processes do not start in time
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InvalidInput(f"ray address {address!r}: {reason}") from None
    return ray, True


def fetch(reference: Any) -> Any:
    """Return the object that a reference stands for, in a process that is connected already."""
    import ray

    return ray.get(reference)
