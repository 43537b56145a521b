"""For all tests: one thread where none are asked for, and how many examples Hypothesis draws.

Behaviour is asserted, never seconds: no deadlines. The default run draws a few examples; `make test-all` draws many
(`--hypothesis-profile=many`).
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# Before torch is loaded: threads that wait for each other in a busy loop are most of the processor time of small models
# where several processes share the cores. An engine that is told its number of threads has that many all the same.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

_TIMELESS = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("few", _TIMELESS, max_examples=40)
settings.register_profile("many", _TIMELESS, max_examples=400)
settings.load_profile("few")
