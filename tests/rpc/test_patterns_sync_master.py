"""SyncMaster and SlavePipe, between threads of one process and between members of a job."""

from __future__ import annotations

import gc
import pickle
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
from sync_rounds import (
    Messages,
    Role,
    Round,
    add_up,
    among_members,
    among_threads,
    ended,
    failure,
    until_waiting,
)
from sync_rounds import calls as calls

from pparallel import SlavePipe, SyncMaster
from pparallel.errors import (
    CallTimeoutError,
    ClosedError,
    ConfigError,
    PeerLostError,
    RemoteError,
    is_consequence,
)
from pparallel.runtime import stopping
from pparallel.runtime.stopping import StopSignal
from pparallel.testing.patience import PATIENCE

Play = Callable[..., list[Any]]

each_way = pytest.mark.parametrize("play", [among_threads, among_members])
each_one = pytest.mark.parametrize("who", [0, 1])


def once(end: Any, run: Any) -> Any:
    return run(1)


def twice(end: Any, run: Any) -> Any:
    return [run(1), run(1)]


def name_of(play: Play, who: int) -> str:
    """Return what an error calls a participant."""
    return "master" if play is among_threads and who == 0 else "abcd"[who]


def others(who: int, role: Role, other: Role) -> list[Role]:
    """Return the roles of three, of whom one has a role of its own."""
    return [role if n == who else other for n in range(3)]


# -- rounds -----------------------------------------------------------------------------------


@each_way
def test_messages_and_results_are_matched_by_identifier(play: Play) -> None:
    seen: list[Messages] = []

    def callback(messages: Messages) -> Messages:
        seen.append(messages)
        return [messages[0], *((key, f"to {key}") for key, _ in reversed(messages[1:]))]

    def role(end: Any, run: Any) -> Any:
        return run(f"from {getattr(end, 'identifier', 'the master')}")

    results = ["from the master", "to b", "to c", "to d"]
    assert play(callback, role, role, role, role) == results
    assert seen == [[(0, results[0]), ("b", "from b"), ("c", "from c"), ("d", "from d")]]


@each_way
def test_many_rounds(play: Play) -> None:
    def role(end: Any, run: Any) -> list[int]:
        with end:
            return [run(n) for n in range(50)]

    assert play(add_up, role, role, role) == [[3 * n for n in range(50)]] * 3


def test_a_master_alone() -> None:
    master = SyncMaster(lambda messages: ((key, [value]) for key, value in messages))
    assert master.nr_slaves == 0
    assert [master.run_master(n) for n in range(3)] == [[0], [1], [2]]


def test_threads_pass_references(calls: Round) -> None:
    message = [1]
    master = SyncMaster(lambda messages: messages)
    answer = calls.call(master.register_slave(1).run_slave, message)
    mine: list[int] = []
    assert master.run_master(mine) is mine
    assert answer.result(PATIENCE) is message


def test_a_registration_after_a_round_begins_a_new_set(calls: Round) -> None:
    master = SyncMaster(add_up)
    pipes: list[SlavePipe] = []
    for slaves in (2, 1, 3):
        old, pipes = pipes, [master.register_slave(n) for n in range(1, slaves + 1)]
        assert master.nr_slaves == slaves
        if old:
            with pytest.raises(
                ClosedError, match="replaced by a new one, which began with slave 1"
            ):
                old[0].run_slave(1)
        answers = [calls.call(pipe.run_slave, 10) for pipe in pipes]
        assert master.run_master(1) == 10 * slaves + 1
        assert [answer.result(PATIENCE) for answer in answers] == [10 * slaves + 1] * slaves


def test_a_new_set_wakes_those_who_wait_in_the_old_one(calls: Round) -> None:
    master = SyncMaster(add_up)
    pipes = [master.register_slave(1), master.register_slave(2)]
    first = [calls.call(each.run_slave, 1) for each in pipes]
    assert master.run_master(1) == 3
    assert [answer.result(PATIENCE) for answer in first] == [3, 3]
    waiting = [calls.call(pipes[0].run_slave, 1), calls.call(master.run_master, 1)]
    until_waiting(master, 2)
    new = master.register_slave("new")
    for each in waiting:
        assert isinstance(ended(each), ClosedError)
    answer = calls.call(new.run_slave, 1)
    assert master.run_master(1) == answer.result(PATIENCE) == 2


# -- misuse -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("identifier", "error", "message"),
    [
        (1, ValueError, "slave 1 is registered already; registered: 1"),
        (0, ValueError, "identifier 0 is the master's"),
        ("a", TypeError, r"'a' is no identifier: .* sorted with the others \(1\)"),
        ([2], TypeError, r"\[2\] is no identifier: .* can be hashed"),
    ],
)
def test_identifiers_that_are_none(identifier: Any, error: type[Exception], message: str) -> None:
    master = SyncMaster(add_up)
    master.register_slave(1)
    with pytest.raises(error, match=message):
        master.register_slave(identifier)
    assert master.nr_slaves == 1


def test_what_is_refused() -> None:
    for timeout in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="give seconds, or None for no limit"):
            SyncMaster(add_up, timeout=timeout)
    with pytest.raises(TypeError, match="must be a function of a list of messages, not None"):
        SyncMaster(None)  # type: ignore[arg-type]


def test_what_is_closed_is_of_no_use() -> None:
    master = SyncMaster(add_up)
    pipe = master.register_slave(1)
    for each in (pipe, pipe, master, master):
        each.close()
    with pytest.raises(ClosedError, match=r"SlavePipe\(1\) is closed"):
        pipe.run_slave(1)
    with pytest.raises(ClosedError, match="the SyncMaster is closed"):
        master.run_master(1)
    with pytest.raises(ClosedError, match="the SyncMaster is closed"):
        master.register_slave(2)


def test_a_pipe_is_not_sent() -> None:
    pipe = SyncMaster(add_up).register_slave(1)
    with pytest.raises(TypeError, match=r"in another member, get a pipe with SyncMaster\.join"):
        pickle.dumps(pipe)


# -- failures ---------------------------------------------------------------------------------


@each_way
def test_the_callback_raises(play: Play) -> None:
    problem = ConfigError("no good", path="norm")

    def fail(messages: Messages) -> Messages:
        raise problem

    def role(end: Any, run: Any) -> list[Exception]:
        return [failure(run, None), failure(run, None)]  # the set has ended

    master, *slaves = play(fail, role, role, role)
    assert master[0] is problem
    for each in (*master, *(error for slave in slaves for error in slave)):
        assert (type(each), str(each), each.path) == (ConfigError, "norm: no good", "norm")
    for error, _ in slaves:
        assert error is not problem
        assert error.__cause__ is problem or "in fail" in error.__cause__.traceback


class UncopiableError(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


@pytest.mark.parametrize(
    ("kind", "args"), [(UncopiableError, (1, 2)), (SystemExit, (3,)), (KeyboardInterrupt, ())]
)
def test_what_cannot_spread_is_told(calls: Round, kind: type[BaseException], args: Any) -> None:
    problem = kind(*args)

    def fail(messages: Messages) -> Messages:
        raise problem

    master = SyncMaster(fail)
    answer = calls.call(master.register_slave(1).run_slave, None)
    assert ended(calls.call(master.run_master, None)) is problem
    error = ended(answer)
    assert isinstance(error, RemoteError)
    assert kind.__name__ in error.type_name
    assert "in fail" in error.traceback


@each_way
@pytest.mark.parametrize(
    ("results", "fault"),
    [
        (None, "not None"),
        ([1, 2, 3], "not [1, 2, 3]"),
        ([], "not those for nobody"),
        ([("b", 0), (0, 0)], "not those for 'b', 0"),
        ([(0, 0)], "not those for 0"),
        ([(0, 0), ("b", 0), ("c", 0)], "not those for 0, 'b', 'c'"),
        ([(0, 0), ("b", 0), ("b", 1)], "not those for 0, 'b', 'b'"),
    ],
)
def test_results_of_another_shape(play: Play, results: Any, fault: str) -> None:
    expected = (
        "the callback must return [(0, result), (identifier, result), ...], the master's first, "
        f"with one for each of 0, 'b', {fault}"
    )
    for error in play(lambda _: results, once, once):
        assert (type(error), str(error)) == (ValueError, expected)


@each_way
@each_one
def test_slaves_that_do_not_come_are_named(play: Play, who: int) -> None:
    failed = threading.Barrier(3)

    def comes(end: Any, run: Any) -> Exception:
        error: Exception = failure(run, 1)
        failed.wait(PATIENCE)
        return error

    def comes_late(end: Any, run: Any) -> Any:
        failed.wait(PATIENCE)
        return failure(run, 1)

    master = "the master" if play is among_threads else "master 'a'"
    named = "slave 'b'" if who else master
    expected = f"the call to {named} for round 1 was not answered within 0.5 s"
    for error in play(add_up, *others(who, comes_late, comes), timeout=0.5):
        assert (type(error), str(error)) == (CallTimeoutError, expected)


@each_way
def test_the_callback_has_no_time_limit(play: Play) -> None:
    together = threading.Barrier(3)

    def ponder(messages: Messages) -> Messages:
        threading.Event().wait(1.2)
        return add_up(messages)

    def role(end: Any, run: Any) -> Any:
        together.wait(PATIENCE)
        return run(1)

    assert play(ponder, role, role, role, timeout=1.0) == [3, 3, 3]


@each_way
@each_one
def test_one_that_fails_wakes_all(play: Play, who: int) -> None:
    problem = MemoryError("no room")

    def fails(end: Any, run: Any) -> None:
        with end:
            run(1)
            raise problem

    results = play(add_up, *others(who, fails, twice))
    assert results.pop(who) is problem
    for error in results:
        assert isinstance(error, PeerLostError)
        assert error.peer == name_of(play, who)
        expected = f"member {error.peer!r} failed in round 2: MemoryError: no room"
        assert str(error) == expected
        assert isinstance(error.__cause__, MemoryError | RemoteError)


@each_way
@each_one
def test_one_that_leaves_too_early(play: Play, who: int) -> None:
    def leaves(end: Any, run: Any) -> Any:
        with end:
            return run(1)

    results = play(add_up, *others(who, leaves, twice))
    assert results.pop(who) == 3
    expected = f"member {name_of(play, who)!r} left after 1 round"
    assert [(type(each), str(each)) for each in results] == [(PeerLostError, expected)] * 2


@pytest.mark.parametrize(("who", "name"), [(0, "master"), (2, "2")])
def test_one_that_is_collected_has_left(calls: Round, who: int, name: str) -> None:
    master = SyncMaster(add_up)
    ends: list[Any] = [master, master.register_slave(1), master.register_slave(2)]
    del master
    answer = calls.call(ends[1].run_slave, 1)
    del ends[who]
    gc.collect()
    assert str(ended(answer)) == f"member {name!r} left after 0 rounds"


def test_a_slave_that_leaves_during_the_callback(calls: Round) -> None:
    def callback(messages: Messages) -> Messages:
        pipes[1].close()
        return messages

    master = SyncMaster(callback)
    pipes = [master.register_slave(identifier) for identifier in (1, 2)]
    answers = [calls.call(pipe.run_slave, 1) for pipe in pipes]
    answers.append(calls.call(master.run_master, 1))
    assert [str(ended(each)) for each in answers] == ["member '2' left after 0 rounds"] * 3


def test_an_interrupt_of_the_master_wakes_all(calls: Round) -> None:
    master = SyncMaster(add_up)
    pipes = [master.register_slave(1), master.register_slave(2)]
    answer = calls.call(pipes[0].run_slave, 1)

    def interrupt() -> None:
        until_waiting(master, 2)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    interrupted = calls.call(interrupt)
    with pytest.raises(KeyboardInterrupt):
        master.run_master(1)
    interrupted.result(PATIENCE)
    assert str(ended(answer)) == "member 'master' failed in round 1: KeyboardInterrupt"


@each_one
def test_one_that_runs_twice_in_a_round(calls: Round, who: int) -> None:
    master = SyncMaster(add_up)
    pipes = [master.register_slave(1), master.register_slave(2)]
    runs = [master.run_master, pipes[0].run_slave]
    title = "slave 1 called run_slave" if who else "the master called run_master"
    expected = f"{title} a second time in round 1, before the first call had returned"
    answers = [calls.call(runs[who], n) for n in range(2)]
    assert [(type(ended(each)), str(ended(each))) for each in answers] == [
        (ValueError, expected)
    ] * 2
    assert str(failure(pipes[1].run_slave, 1)) == expected


def test_a_rank_that_is_told_to_stop_wakes_all(calls: Round) -> None:
    master = SyncMaster(add_up)
    pipes = [master.register_slave(1), master.register_slave(2)]
    stop = StopSignal()

    def rank(pipe: SlavePipe) -> None:
        with stopping.running_under(stop):
            pipe.run_slave(1)

    answers = [calls.call(rank, pipes[0]), calls.call(pipes[1].run_slave, 1)]
    until_waiting(master, 2)
    stop.set(RuntimeError("elsewhere"))
    for answer in answers:
        error = ended(answer)
        assert isinstance(error, ClosedError)
        assert is_consequence(error)
