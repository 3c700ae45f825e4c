"""SyncMaster and SlavePipe between members of a job."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from typing_extensions import override

import pparallel
from pparallel import RpcGroup, Runtime, SlavePipe, SyncMaster
from pparallel.errors import (
    CallTimeoutError,
    ClosedError,
    DirectoryError,
    PeerLostError,
    RemoteError,
    SerializationError,
)
from pparallel.patterns.across import AcrossCodec
from pparallel.testing.patience import PATIENCE

Messages = list[tuple[Any, Any]]
KEPT: list[Any] = []


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    KEPT.clear()


def launch(members: int | list[Any], target: Callable[..., Any], *args: Any) -> list[Any]:
    config = {"members": members, "reducer": {"backend": "local"}, "close_timeout": PATIENCE}
    return pparallel.launch(config, target, args)


def add_up(messages: Messages) -> Messages:
    total = sum(message for _, message in messages)
    return [(identifier, total) for identifier, _ in messages]


def participant(
    rt: Runtime, callback: Any = add_up, name: str = "sum", **options: Any
) -> tuple[SyncMaster | SlavePipe, Callable[[Any], Any]]:
    """Return the end of this member, the master's in rank 0, and its method that runs a round."""
    if rt.rank == 0:
        master = SyncMaster.across(rt.group(), name, callback, **options)
        return master, master.run_master
    pipe = SyncMaster.join(rt.group(), name)
    return pipe, pipe.run_slave


def failure(run: Callable[..., Any], *args: Any) -> Exception:
    """Return what the call raises."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the caller looks at it
        run(*args)
    return caught.value


# -- rounds -----------------------------------------------------------------------------------


def many_rounds(rt: Runtime, rounds: int) -> list[int]:
    end, run = participant(rt, timeout=PATIENCE)
    with end:
        return [run(rt.rank + n) for n in range(rounds)]


def test_many_rounds() -> None:
    rounds, members = 100, 4
    expected = [sum(range(members)) + n * members for n in range(rounds)]
    assert launch(members, many_rounds, rounds) == [expected] * members


def many_masters(rt: Runtime, count: int) -> list[int]:
    results = []
    for n in range(count):
        end, run = participant(rt, timeout=PATIENCE)
        with end:  # the master closes as soon as it has its own result
            results.append(run(n + rt.rank))
    return results


def test_many_masters_of_one_round() -> None:
    count = 50
    assert launch(3, many_masters, count) == [[3 * n + 3 for n in range(count)]] * 3


def order(rt: Runtime) -> Any:
    seen: list[Messages] = []

    def callback(messages: Messages) -> Messages:
        seen.append(messages)
        return [messages[0], *((key, f"to {key}") for key, _ in reversed(messages[1:]))]

    if rt.rank == 1:
        master = SyncMaster.across(rt.group(), "order", callback)
        assert master.nr_slaves == 3
        assert master.run_master("mine") == "mine"
        return seen
    pipe = SyncMaster.join(rt.group(), "order", 100 - rt.rank)
    assert pipe.identifier == 100 - rt.rank
    return pipe.run_slave(rt.name)


def test_messages_and_results_are_matched_by_identifier() -> None:
    seen = [[(0, "mine"), (97, "d"), (98, "c"), (100, "a")]]
    assert launch(["a", "b", "c", "d"], order) == ["to 100", seen, "to 98", "to 97"]


def ownership(rt: Runtime) -> None:
    def overwrite(messages: Messages) -> Messages:
        for _, message in messages:
            message["x"].fill_(9)
        total = torch.zeros(1000)
        KEPT.append(total)
        return [(key, total) for key, _ in messages]

    end, run = participant(rt, overwrite)
    mine = {"x": torch.full((1000,), float(rt.rank))}
    with end:
        result = run(mine)
        if rt.rank == 0:
            assert result is KEPT[0]
            result.fill_(5)  # not seen by the others, whose replies may be on their way
        rt.group().barrier()
        assert bool((mine["x"] == (9 if rt.rank == 0 else rt.rank)).all())  # a slave's is its own
        assert bool((result == (5 if rt.rank == 0 else 0)).all())
        result.fill_(rt.rank)
        rt.group().barrier()
        assert bool((result == rt.rank).all())


def test_what_crosses_is_the_receivers_own() -> None:
    assert launch(3, ownership) == [None] * 3


def test_a_result_may_be_changed_before_it_is_sent() -> None:
    with pparallel.build() as rt:
        codec = AcrossCodec(rt.group())
        result = torch.zeros(1000)
        reply = codec.sealed(result)
        result.fill_(1)
        assert torch.equal(codec.opened(reply.buffers), torch.zeros(1000))


def several(rt: Runtime) -> list[int]:
    ends = [participant(rt, name=name) for name in ("one", "two")]
    results = [run(10**n) for n, (_, run) in enumerate(ends)]
    ends[0][0].close()
    rt.group().barrier()
    again, run = participant(rt, name="one")  # the name is free again
    results += [run(1000), ends[1][1](5)]
    stale = ends[0][0]
    if isinstance(stale, SlavePipe):
        assert isinstance(failure(stale.run_slave, 1), ClosedError)
    again.close()
    return results


def test_several_masters_and_a_name_used_again() -> None:
    assert launch(3, several) == [[3, 30, 3000, 15]] * 3


def mixed(rt: Runtime) -> int:
    end, run = participant(rt)
    if not isinstance(end, SyncMaster):
        with end:
            return int(run(1))
    own = end.register_slave("a thread of the master's member")
    answers: list[int] = []
    thread = threading.Thread(target=lambda: answers.append(own.run_slave(10)))
    thread.start()
    answers.append(end.run_master(100))
    thread.join()
    assert answers == [111, 111]
    assert end.register_slave("of a new set").identifier == "of a new set"
    assert end.nr_slaves == 1
    return answers[0]


def test_threads_and_members_in_one_set() -> None:
    assert launch(2, mixed) == [111, 111]


def by_remote_calls(rt: Runtime, slaves: int) -> list[int]:
    """All participants are functions that others call, in a member with one handler thread."""
    group = rt.group()
    if rt.rank == 0:
        master = SyncMaster(add_up)
        KEPT.extend(
            [master.run_master, *(master.register_slave(n).run_slave for n in range(1, slaves))]
        )
    group.barrier()
    if rt.rank == 1:
        futures = [group.rpc_async(0, call_kept, args=(n,)) for n in reversed(range(slaves))]
        return [future.wait() for future in futures]
    return []


def call_kept(number: int) -> Any:
    run: Any = KEPT[number]
    return run(number)


def test_who_waits_uses_no_handler_thread() -> None:
    config = {
        "members": 2,
        "reducer": {"backend": "local"},
        "transport": {"backend": "local", "handler_threads": 1},
    }
    results = pparallel.launch(config, by_remote_calls, (20,))
    assert results[1] == [sum(range(20))] * 20


# -- failures ---------------------------------------------------------------------------------


def callback_raises(rt: Runtime) -> list[Exception]:
    problem = ZeroDivisionError("no batch")

    def fail(messages: Messages) -> Messages:
        raise problem

    _, run = participant(rt, fail)
    errors = [failure(run, None), failure(run, None)]
    assert rt.rank or errors[0] is problem
    rt.group().barrier()
    return errors


def test_the_callback_raises_in_all() -> None:
    for rank, errors in enumerate(launch(3, callback_raises)):
        assert [(type(each), str(each)) for each in errors] == [(ZeroDivisionError, "no batch")] * 2
        if rank:
            assert isinstance(errors[0].__cause__, RemoteError)
            assert "in fail" in errors[0].__cause__.traceback


def bad_results(rt: Runtime) -> str:
    _, run = participant(rt, lambda messages: messages[:2])
    error = failure(run, None)
    rt.group().barrier()
    assert isinstance(error, ValueError)
    return str(error)


def test_results_of_another_shape_are_told_to_all() -> None:
    for error in launch(["a", "b", "c"], bad_results):
        assert "and there is no result for 'c'" in error


def too_late(rt: Runtime, missing: int) -> str:
    _, run = participant(rt, timeout=1.0)
    rt.group().barrier()
    if rt.rank != missing:
        error = failure(run, 1)
        rt.group().barrier()
    else:
        rt.group().barrier()
        error = failure(run, 1)
    assert isinstance(error, CallTimeoutError)
    return str(error)


@pytest.mark.parametrize(("missing", "named"), [(0, "master 'a'"), (2, "slave 'c'")])
def test_who_does_not_come_is_named(missing: int, named: str) -> None:
    expected = f"the call to {named} for round 1 was not answered within 1 s"
    assert launch(["a", "b", "c"], too_late, missing) == [expected] * 3


def slow_callback(rt: Runtime) -> int:
    def ponder(messages: Messages) -> Messages:
        threading.Event().wait(1.2)
        return add_up(messages)

    _, run = participant(rt, ponder, timeout=1.0)
    rt.group().barrier()
    return int(run(1))


def test_the_callback_has_no_time_limit() -> None:
    assert launch(3, slow_callback) == [3, 3, 3]


def one_fails(rt: Runtime, who: int) -> str:
    end, run = participant(rt)
    run(1)
    if rt.rank == who:
        with pytest.raises(MemoryError), end:
            raise MemoryError("no room")
        rt.group().barrier()
        return ""
    error = failure(run, 1)
    rt.group().barrier()
    assert isinstance(error, PeerLostError)
    assert error.peer == rt.members[who]
    assert isinstance(failure(run, 1), PeerLostError)
    return str(error)


@pytest.mark.parametrize("who", [0, 1])
def test_one_that_fails_wakes_all(who: int) -> None:
    results = launch(["a", "b", "c"], one_fails, who)
    told = f"member {'ab'[who]!r} failed in round 2: MemoryError: no room"
    assert [each for n, each in enumerate(results) if n != who] == [told, told]


def one_returns_early(rt: Runtime, who: int) -> str:
    _, run = participant(rt)
    run(1)
    if rt.rank == who:
        return ""  # and its end is collected
    error = failure(run, 1)
    assert isinstance(error, PeerLostError)
    return str(error)


@pytest.mark.parametrize("who", [0, 2])
def test_one_that_returns_too_early(who: int) -> None:
    results = launch(["a", "b", "c"], one_returns_early, who)
    told = f"member {'abc'[who]!r} left after 1 round"
    assert [each for n, each in enumerate(results) if n != who] == [told, told]


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


def one_dies(rt: Runtime, who: int) -> str:
    end, run = participant(rt)
    KEPT.append(end)  # it is not the end that leaves, but its member
    run(1)
    if rt.rank == who:
        return ""
    error = failure(run, 1)
    assert isinstance(error, PeerLostError)
    return str(error)


def test_a_member_that_ends_wakes_all() -> None:
    members = ["a", "b", {"name": "c", "override": {"close_timeout": 0.01}}]
    results = launch(members, one_dies, 2)
    assert results == ["member 'c' has left", "member 'c' has left", ""]


def unsendable(rt: Runtime, who: int) -> tuple[type[Exception], str]:
    def results(messages: Messages) -> Messages:
        return [(key, threading.Lock() if who == 0 and key else 1) for key, _ in messages]

    _, run = participant(rt, results)
    error = failure(run, threading.Lock() if rt.rank and rt.rank == who else 1)
    rt.group().barrier()
    return type(error), str(error)


def test_a_message_that_cannot_be_sent() -> None:
    results = launch(["a", "b", "c"], unsendable, 1)
    assert [kind for kind, _ in results] == [PeerLostError, SerializationError, PeerLostError]
    for _, message in (results[0], results[2]):
        assert "member 'b' failed in round 1: " in message
        assert "SerializationError" in message


def test_a_result_that_cannot_be_sent() -> None:
    for kind, message in launch(["a", "b", "c"], unsendable, 0):
        assert kind is SerializationError
        assert "the result for slave 'b' cannot be serialised" in message


class Unreadable:
    """Can be sent, and not be read."""

    @override
    def __reduce__(self) -> Any:
        return refuse, ()


def refuse() -> None:
    message = "not here"
    raise LookupError(message)


def unreadable(rt: Runtime) -> tuple[type[Exception], str]:
    _, run = participant(rt)
    error = failure(run, Unreadable() if rt.rank == 1 else 1)
    rt.group().barrier()
    return type(error), str(error)


def test_a_message_that_cannot_be_read() -> None:
    for kind, message in launch(["a", "b", "c"], unreadable):
        assert kind is SerializationError
        assert "the message of slave 'b' cannot be read" in message


# -- meeting ----------------------------------------------------------------------------------


def meeting(rt: Runtime, how: Callable[[RpcGroup, int], object]) -> tuple[type[Exception], str]:
    error = failure(how, rt.group(), rt.rank)
    rt.group().barrier()
    return type(error), str(error)


def nobody_leads(group: RpcGroup, rank: int) -> object:
    return SyncMaster.join(group, "sum")


def test_nobody_is_the_master() -> None:
    for kind, message in launch(["a", "b"], meeting, nobody_leads):
        assert kind is DirectoryError
        assert message == (
            "no member of group 'world' is the master of 'sum': one of a, b calls SyncMaster.across"
        )


def same_identifier(group: RpcGroup, rank: int) -> object:
    if rank == 0:
        return SyncMaster.across(group, "sum", add_up).run_master(1)
    return SyncMaster.join(group, "sum", "x").run_slave(1)


def test_an_identifier_is_joined_once() -> None:
    for kind, message in launch(4, meeting, same_identifier):
        assert kind is ValueError
        assert "slave 'x' is registered already" in message


def two_masters(rt: Runtime) -> str | None:
    group = rt.group()
    if rt.rank == 0:
        with SyncMaster.across(group, "sum", add_up) as master:
            group.barrier()
            return str(master.run_master(1))
    with SyncMaster.join(group, "sum") as pipe:
        error = failure(SyncMaster.across, group, "sum", add_up)
        assert isinstance(error, DirectoryError)
        group.barrier()  # the name is the first one's still
        pipe.run_slave(1)
    return str(error)


def test_a_name_has_one_master() -> None:
    results = launch(["a", "b"], two_masters)
    assert results[0] == "2"
    assert "is already paired to Group [world] by member 'a'" in results[1]


def alone(rt: Runtime) -> str:
    """Take part under a name that no other member knows."""
    if rt.rank == 0:
        error = failure(lambda: SyncMaster.across(rt.group(), "sum", add_up, timeout=0.05))
    else:
        error = failure(lambda: SyncMaster.join(rt.group(), "mean", timeout=0.05))
    assert isinstance(error, CallTimeoutError)
    return str(error)


def test_who_never_meets_does_not_wait_for_ever() -> None:
    for message in launch(2, alone):
        assert "the wait of group 'world' for all its members" in message
