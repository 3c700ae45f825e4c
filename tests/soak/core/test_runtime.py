"""Jobs that end again and again, and one of very many members."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

import pparallel
from pparallel import Runtime


@pytest.mark.usefixtures("impatient_interpreter")
def test_the_cause_of_the_end_is_always_told(rounds: Iterable[random.Random]) -> None:
    def work(rt: Runtime) -> None:
        rt.group().barrier()
        if rt.rank == 0:
            message = "this went wrong"
            raise LookupError(message)
        rt.group().barrier()

    for rng in rounds:
        with pytest.raises(LookupError, match="this went wrong"):
            pparallel.launch({"members": rng.randrange(2, 9)}, work)


@pytest.mark.usefixtures("impatient_interpreter")
def test_leaving_together_never_fails(rounds: Iterable[random.Random]) -> None:
    def work(rt: Runtime) -> int:
        rt.group().barrier()
        return rt.rank

    for rng in rounds:
        size = rng.randrange(2, 9)
        assert pparallel.launch({"members": size}, work) == [*range(size)]


def test_hundreds_of_members_call_one_another(rounds: Iterable[random.Random]) -> None:
    def all_to_all(rt: Runtime) -> list[int]:
        group = rt.group()
        group.register(rt.name, abs)
        group.barrier()
        calls = [group.registered_async(name, args=(-rt.rank,)) for name in rt.members]
        found = [call.wait() for call in calls]
        group.barrier()
        return found

    for rng in rounds:
        size = rng.randrange(100, 300)
        config = {"members": size, "transport": {"handler_threads": 1}}
        results = pparallel.launch(config, all_to_all)
        assert results == [[rank] * size for rank in range(size)]
