"""Members that are killed while they train with the reducer ``all_reduce``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from crew import crew

WAYS: dict[str, dict[str, Any]] = {
    "straight": {"collective": {"backend": "shm"}},
    "flat": {"collective": {"backend": "gloo"}, "bucket": 600},
    "overlap": {"collective": {"backend": "shm"}, "bucket": 600, "overlap": True},
    "overlap, gloo": {"collective": {"backend": "gloo"}, "bucket": 600, "overlap": True},
}


@pytest.mark.parametrize(
    ("way", "where"),
    [
        ("straight", "gradients"),
        ("straight", "before"),
        ("flat", "roll"),
        ("overlap", "roll"),
        ("overlap, gloo", "gradients"),
    ],
)
def test_a_killed_member_ends_the_others_step(tmp_path: Path, way: str, where: str) -> None:
    reducer = {"backend": "all_reduce", **WAYS[way]}
    options: dict[str, Any] = {"reducer": reducer, "launcher": {"backend": "process"}}
    with crew(tmp_path, {"backend": "ipc"}) as members:
        for name in "abc":
            program = "all_reduce_programs:be_killed_in_a_step"
            members.start(name, program, members.note("stays"), where, **options)
        members.noted("stays")
        members.kill("c")
        found = [members.answer(name) for name in "ab"]
        assert not any(members.outcome(name).error for name in "ab")
    for error, steps, stopped in found:
        assert error.startswith("PeerLostError: member 'c' has died"), error
        assert stopped == error
        assert steps == 4
