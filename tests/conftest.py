"""How many examples Hypothesis draws, for all tests: behaviour is asserted, never seconds.

The default run draws a few; `make test-all` draws many (`--hypothesis-profile=many`).
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

_TIMELESS = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("few", _TIMELESS, max_examples=40)
settings.register_profile("many", _TIMELESS, max_examples=400)
settings.load_profile("few")
