"""The curves, a module each: `CURVES` has all of them in the order of the report."""

from __future__ import annotations

from typing import Final

from bench.scale.curve import Curve
from bench.scale.curves import fetch, followers, join_storm, member, metadata

CURVES: Final[tuple[Curve, ...]] = (member.CURVE, followers.CURVE, fetch.CURVE, metadata.CURVE, join_storm.CURVE)
