"""Bounded staleness: clock, secondaries and members, made up, together, with random seeds."""

from __future__ import annotations

from typing import Any

from hypothesis import given, seed, settings
from staleness_moves import DRAWN, play


def test_no_gradient_is_too_old_and_steps_go_on(rounds: Any) -> None:
    for random in rounds:

        @seed(random.randrange(2**32))
        @settings(max_examples=500, database=None)
        @given(**DRAWN)
        def run(**drawn: Any) -> None:
            play(**drawn)

        run()
