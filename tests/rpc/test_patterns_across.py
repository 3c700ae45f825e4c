"""SyncMaster between members of a job: how they meet, and what crosses."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from sync_rounds import Messages, add_up, among_members, failure, launch
from typing_extensions import override

import pparallel
from pparallel import RpcGroup, Runtime, SlavePipe, SyncMaster
from pparallel.errors import (
    CallTimeoutError,
    ClosedError,
    DirectoryError,
    PeerLostError,
    SerializationError,
)

KEPT: list[Any] = []


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    KEPT.clear()


def participant(rt: Runtime, name: str = "sum") -> tuple[Any, Callable[[Any], Any]]:
    """Return the end of this member, the master's in rank 0, and its method that runs a round."""
    if rt.rank == 0:
        master = SyncMaster.across(rt.group(), name, add_up)
        return master, master.run_master
    pipe = SyncMaster.join(rt.group(), name)
    return pipe, pipe.run_slave


# -- rounds -----------------------------------------------------------------------------------


def many_masters(rt: Runtime, count: int) -> list[int]:
    results = []
    for n in range(count):
        (one, run_one), (two, run_two) = participant(rt, "one"), participant(rt, "two")
        with one, two:  # the master closes as soon as it has its own result
            results += [run_one(n + rt.rank), run_two(1)]
    return results


def test_many_masters_of_one_round() -> None:
    """Two at once, whose names are free again for the next."""
    expected = [each for n in range(20) for each in (3 * n + 3, 3)]
    assert launch(3, many_masters, 20) == [expected] * 3


def ownership(rt: Runtime) -> None:
    def overwrite(messages: Messages) -> Messages:
        for _, message in messages:
            message["x"].fill_(9)
        total = torch.zeros(1000)
        KEPT.append(total)
        return [(key, total) for key, _ in messages]

    group = rt.group()
    mine = {"x": torch.full((1000,), float(rt.rank))}
    if rt.rank == 0:
        result = SyncMaster.across(group, "own", overwrite).run_master(mine)
        assert result is KEPT[0]
        result.fill_(5)  # not seen by the others, whose replies may be on their way
    else:
        result = SyncMaster.join(group, "own").run_slave(mine)
    group.barrier()
    assert bool((mine["x"] == (9 if rt.rank == 0 else rt.rank)).all())  # a slave's is its own
    assert bool((result == (5 if rt.rank == 0 else 0)).all())
    result.fill_(rt.rank)
    group.barrier()
    assert bool((result == rt.rank).all())


def test_what_crosses_is_the_receivers_own() -> None:
    assert launch(3, ownership) == [None] * 3


def by_remote_calls(rt: Runtime, slaves: int) -> list[int]:
    """All participants are functions that others call, in a member with one handler thread."""
    group = rt.group()
    if rt.rank == 0:
        master = SyncMaster(add_up)
        KEPT.append(master.run_master)
        KEPT.extend(master.register_slave(n).run_slave for n in range(1, slaves))
    group.barrier()
    if rt.rank == 0:
        return []
    futures = [group.rpc_async(0, call_kept, args=(n,)) for n in reversed(range(slaves))]
    return [future.wait() for future in futures]


def call_kept(number: int) -> Any:
    return KEPT[number](number)


def test_who_waits_uses_no_handler_thread() -> None:
    config = {
        "members": 2,
        "reducer": {"backend": "local"},
        "transport": {"backend": "local", "handler_threads": 1},
    }
    results = pparallel.launch(config, by_remote_calls, (20,))
    assert results[1] == [sum(range(20))] * 20


# -- failures ---------------------------------------------------------------------------------


def one_returns_early(rt: Runtime, who: int, keep: bool) -> str:
    end, run = participant(rt)
    if keep:
        KEPT.append(end)  # it is not the end that leaves, but its member
    run(1)
    if rt.rank == who:
        return ""
    error = failure(run, 1)
    assert isinstance(error, PeerLostError)
    return str(error)


@pytest.mark.parametrize("who", [0, 2])
def test_one_that_returns_too_early(who: int) -> None:
    results = launch(["a", "b", "c"], one_returns_early, who, False)
    assert results.pop(who) == ""  # and its end was collected
    assert results == [f"member {'abc'[who]!r} left after 1 round"] * 2


def test_a_member_that_ends_wakes_all() -> None:
    members = ["a", "b", {"name": "c", "override": {"close_timeout": 0.01}}]
    results = launch(members, one_returns_early, 2, True)
    assert results == ["member 'c' has left", "member 'c' has left", ""]


def one_raises(rt: Runtime, who: int, seen: list[BaseException]) -> None:
    end, run = participant(rt)
    with end:
        run(1)
        if rt.rank == who:
            raise LookupError("in the middle")
        try:
            run(1)
        except BaseException as error:
            seen.append(error)
            raise


@pytest.mark.parametrize("who", [0, 2])
def test_a_member_that_raises_in_the_middle(who: int) -> None:
    seen: list[BaseException] = []
    with pytest.raises((LookupError, PeerLostError), match="in the middle"):
        launch(["a", "b", "c"], one_raises, who, seen)
    assert len(seen) == 2
    for error in seen:  # of the participant's failure or of the job's end, whichever came first
        assert isinstance(error, (PeerLostError, ClosedError))
        assert f"{'abc'[who]!r} failed" in str(error)
        assert "LookupError: in the middle" in str(error)


class Unreadable:
    """Can be sent, and not be read."""

    @override
    def __reduce__(self) -> Any:
        return {}.__getitem__, ("not here",)


def sending(message: Any) -> Callable[[Any, Any], Any]:
    return lambda end, run: run(message)


def test_a_message_that_cannot_be_sent() -> None:
    errors = among_members(add_up, sending(1), sending(threading.Lock()), sending(1))
    assert [type(each) for each in errors] == [PeerLostError, SerializationError, PeerLostError]
    for error in (errors[0], errors[2]):
        assert "member 'b' failed in round 1: " in str(error)
        assert "SerializationError" in str(error)


def test_a_result_that_cannot_be_sent() -> None:
    def locks(messages: Messages) -> Messages:
        return [(key, threading.Lock() if key else 1) for key, _ in messages]

    for error in among_members(locks, sending(1), sending(1), sending(1)):
        assert isinstance(error, SerializationError)
        assert "the result for slave 'b' cannot be serialised" in str(error)


def test_a_message_that_cannot_be_read() -> None:
    for error in among_members(add_up, sending(1), sending(Unreadable()), sending(1)):
        assert isinstance(error, SerializationError)
        assert "the message of slave 'b' cannot be read" in str(error)


# -- meeting ----------------------------------------------------------------------------------


def meeting(rt: Runtime, how: Callable[[RpcGroup, int], object]) -> tuple[type[Exception], str]:
    error = failure(how, rt.group(), rt.rank)
    rt.group().barrier()
    return type(error), str(error)


def test_nobody_is_the_master() -> None:
    message = (
        "no member of group 'world' is the master of 'sum': one of a, b calls SyncMaster.across"
    )
    met = launch(["a", "b"], meeting, lambda group, rank: SyncMaster.join(group, "sum"))
    assert met == [(DirectoryError, message)] * 2


def same_identifier(group: RpcGroup, rank: int) -> object:
    if rank == 0:
        return SyncMaster.across(group, "sum", add_up).run_master(1)
    return SyncMaster.join(group, "sum", "x").run_slave(1)


def test_an_identifier_is_joined_once() -> None:
    for kind, message in launch(4, meeting, same_identifier):
        assert kind is ValueError
        assert "slave 'x' is registered already" in message


def two_masters(rt: Runtime) -> str:
    group = rt.group()
    end, run = participant(rt)
    with end:
        if isinstance(end, SlavePipe):
            error = failure(SyncMaster.across, group, "sum", add_up)
            assert isinstance(error, DirectoryError)
        group.barrier()  # the name is the first one's still
        result = run(1)
    return str(error if rt.rank else result)


def test_a_name_has_one_master() -> None:
    results = launch(["a", "b"], two_masters)
    assert results[0] == "2"
    assert "is already paired to Group [world] by member 'a'" in results[1]


def alone(group: RpcGroup, rank: int) -> object:
    """Take part under a name that no other member knows."""
    if rank == 0:
        return SyncMaster.across(group, "sum", add_up, timeout=0.05)
    return SyncMaster.join(group, "mean", timeout=0.05)


def test_who_never_meets_does_not_wait_for_ever() -> None:
    for (kind, message), other in zip(launch(2, meeting, alone), "10", strict=True):
        assert kind is CallTimeoutError
        assert f"the wait of group 'world' for member-{other} (" in message
