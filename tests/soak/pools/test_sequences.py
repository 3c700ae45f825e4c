"""Sequences of calls to pools and to arenas, other ones in each run."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from typing import Any

import hypothesis
import pytest
from arena_machine import ArenaMachine
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from pparallel.testing.machines import pool_machine
from pparallel_local import SerialPoolConfig, ThreadPoolConfig
from pparallel_process import P2PPoolConfig, ProcessPoolConfig

Rounds = Iterable[random.Random]

FEW = settings(max_examples=5, stateful_step_count=50, database=None)


@pytest.mark.parametrize(
    "config", [SerialPoolConfig, ThreadPoolConfig, ProcessPoolConfig, P2PPoolConfig]
)
def test_any_sequence_of_calls_of_a_pool(config: Any, rounds: Rounds) -> None:
    for rng in rounds:
        machine: Any = hypothesis.seed(rng.getrandbits(64))(pool_machine(config()))
        machine.failed_after, machine.is_over = 0.0, False
        machine.begins_until = time.monotonic() + 300.0
        run_state_machine_as_test(machine, settings=FEW)


def test_any_sequence_of_uses_of_an_arena(rounds: Rounds) -> None:
    for rng in rounds:
        machine = hypothesis.seed(rng.getrandbits(64))(type("Arenas", (ArenaMachine,), {}))
        run_state_machine_as_test(machine, settings=settings(FEW, max_examples=50))
