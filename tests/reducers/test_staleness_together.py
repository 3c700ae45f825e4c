"""Bounded staleness: clock, secondaries and members, made up, together."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from staleness_moves import DRAWN, play


def test_no_gradient_is_too_old_and_steps_go_on() -> None:
    reduced = 0

    @settings(max_examples=60, suppress_health_check=list(HealthCheck))
    @given(**DRAWN)
    def run(**drawn: Any) -> None:
        nonlocal reduced
        reduced += play(**drawn)

    run()
    assert reduced > 60, "too little happens for this to test anything"
