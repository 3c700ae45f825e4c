"""Jobs of many members, which start, meet and stop at the same time."""

from __future__ import annotations

import random
from collections.abc import Iterable

import launched_jobs
import pytest

import pparallel


@pytest.mark.parametrize("transport", ["ipc", "zmq"])
def test_many_members_start_meet_and_stop(transport: str, rounds: Iterable[random.Random]) -> None:
    for rng in rounds:
        count = rng.randrange(64, 129)
        many = {
            "members": count,
            "launcher": {"backend": "process", "preload": ["launched_jobs"]},
            "transport": {"backend": transport},
        }
        found = pparallel.launch(many, launched_jobs.meet)
        assert len({pid for _, pid, _, _ in found}) == count
