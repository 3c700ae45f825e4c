"""Random sequences of operations on the collective ``shm``, among processes."""

from __future__ import annotations

from typing import Any

import preloads
import shm_collective_programs as programs

import pparallel

SLOT = 4096  #: bytes: what is larger goes through in pieces


def test_many_operations_among_processes(rounds: Any) -> None:
    for random in rounds:
        size = random.randint(2, 5)
        config = {
            "members": size,
            "launcher": {"backend": "process", "preload": preloads.MEMBERS},
            "transport": {"backend": random.choice(["ipc", "zmq"])},
            "collective": {"backend": "shm", "slot": SLOT},
        }
        arguments = (1000, SLOT, random.randrange(2**32))
        assert pparallel.launch(config, programs.at_random, arguments) == [None] * size
