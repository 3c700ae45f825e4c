"""Worlds of ``compat.machin.distributed`` that come and go."""

from __future__ import annotations

import random
from collections.abc import Iterable

import compat_distributed_programs as programs
from compat_distributed_crew import crew
from compat_distributed_programs import SIZE


def test_worlds_of_torch_rpc_leave_no_more_and_more(rounds: Iterable[random.Random]) -> None:
    for _ in rounds:
        with crew(PPARALLEL_MACHIN_TRANSPORT="torch_rpc") as members:
            for rank in range(SIZE):
                members.start(rank, programs.come_and_go_with_torch, rank, members.ports)
            for before, after in map(members.outcome, range(SIZE)):
                assert before == after
