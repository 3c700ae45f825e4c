"""Signals that arrive again and again while a member waits for its calls."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest
from rpc_members import wait_interrupted

import pparallel
from pparallel.testing.patience import PATIENCE


@pytest.mark.parametrize("backend", ["ipc", "zmq"])
def test_no_call_is_lost_whatever_a_signal_handler_interrupts(
    rounds: Iterable[Random], backend: str
) -> None:
    raw = {
        "members": 2,
        "launcher": {"backend": "process"},
        "transport": {"backend": backend, "timeout": PATIENCE},
    }
    for rng in rounds:
        interrupts, wrong = pparallel.launch(raw, wait_interrupted, [rng.uniform(1, 4)])[0]
        assert interrupts > 10
        assert wrong == 0
