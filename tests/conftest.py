"""Settings of the whole suite. Fixtures that start a service live beside the tests that need it."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# No deadline per example: what takes long on a busy machine is not wrong. CI draws the same examples every time, so
# that a red build is red again when it is repeated.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("default"), derandomize=True, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "default"))
