"""SyncMaster and SlavePipe between threads of one process."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sync_rounds import Messages, Round, add_up, echo, ended, until_registered
from sync_rounds import calls as calls

from pparallel import SyncMaster
from pparallel.errors import ClosedError
from pparallel.testing.patience import PATIENCE

# -- rounds -----------------------------------------------------------------------------------


def test_a_round(calls: Round) -> None:
    seen: list[Messages] = []

    def callback(messages: Messages) -> Messages:
        seen.append(messages)
        return [messages[0], *((key, f"to {key}") for key, _ in reversed(messages[1:]))]

    master = SyncMaster(callback)
    pipes = [master.register_slave(identifier) for identifier in (7, 2, 5)]
    assert [pipe.identifier for pipe in pipes] == [7, 2, 5]
    assert master.nr_slaves == 3
    answers = [calls.call(pipe.run_slave, f"from {pipe.identifier}") for pipe in pipes]
    assert master.run_master("mine") == "mine"
    assert [answer.result(PATIENCE) for answer in answers] == ["to 7", "to 2", "to 5"]
    assert seen == [[(0, "mine"), (2, "from 2"), (5, "from 5"), (7, "from 7")]]


def test_the_master_may_come_first(calls: Round) -> None:
    master = SyncMaster(add_up)
    pipe = master.register_slave("only")
    mine = calls.call(master.run_master, 1)
    assert pipe.run_slave(2) == 3
    assert mine.result(PATIENCE) == 3


def test_a_master_alone() -> None:
    master = SyncMaster(lambda messages: ((key, [value]) for key, value in messages))
    assert master.nr_slaves == 0
    assert [master.run_master(n) for n in range(3)] == [[0], [1], [2]]


def test_threads_pass_references(calls: Round) -> None:
    message = [1]
    master = SyncMaster(echo)
    answer = calls.call(master.register_slave(1).run_slave, message)
    mine: list[int] = []
    assert master.run_master(mine) is mine
    assert answer.result(PATIENCE) is message


def test_many_rounds_of_many_slaves() -> None:
    rounds, slaves = 100, 12
    expected = [sum(range(slaves + 1)) + n * (slaves + 1) for n in range(rounds)]
    master = SyncMaster(add_up)
    pipes = [master.register_slave(identifier) for identifier in range(1, slaves + 1)]

    def replica(run: Callable[[int], int], number: int) -> list[int]:
        return [run(number + n) for n in range(rounds)]

    with ThreadPoolExecutor(slaves) as threads:
        answers = [threads.submit(replica, each.run_slave, each.identifier) for each in pipes]
        assert replica(master.run_master, 0) == expected
        assert all(answer.result(PATIENCE) == expected for answer in answers)


def test_a_registration_after_a_round_begins_a_new_set(calls: Round) -> None:
    master = SyncMaster(add_up)
    first = master.register_slave(1)
    answer = calls.call(first.run_slave, 1)
    assert master.run_master(0) == answer.result(PATIENCE) == 1
    assert master.nr_slaves == 1
    second, third = master.register_slave(1), master.register_slave(2)
    assert master.nr_slaves == 2
    with pytest.raises(ClosedError, match="replaced by a new one, which began with slave 1"):
        first.run_slave(1)
    answers = [calls.call(each.run_slave, 10) for each in (second, third)]
    assert master.run_master(1) == 21
    assert [answer.result(PATIENCE) for answer in answers] == [21, 21]


def test_a_new_set_for_each_round(calls: Round) -> None:
    master = SyncMaster(add_up)
    for n in range(30):
        pipes = [master.register_slave(identifier) for identifier in range(1, 4)]
        answers = [calls.call(pipe.run_slave, n) for pipe in pipes]
        assert master.run_master(n) == 4 * n
        assert [answer.result(PATIENCE) for answer in answers] == [4 * n] * 3
    assert master.nr_slaves == 3


def test_a_new_set_wakes_those_who_wait_in_the_old_one(calls: Round) -> None:
    master = SyncMaster(add_up)
    pipe, never = master.register_slave(1), master.register_slave(2)
    first = [calls.call(each.run_slave, 1) for each in (pipe, never)]
    assert master.run_master(1) == 3
    assert [answer.result(PATIENCE) for answer in first] == [3, 3]
    waiting = [calls.call(pipe.run_slave, 1), calls.call(master.run_master, 1)]
    new = until_registered(master, pipe)
    for each in waiting:
        assert isinstance(ended(each), ClosedError)
    answer = calls.call(new.run_slave, 1)
    assert master.run_master(1) == answer.result(PATIENCE) == 2


# -- misuse -----------------------------------------------------------------------------------


def test_an_identifier_is_registered_once() -> None:
    master = SyncMaster(add_up)
    pipe = master.register_slave("a")
    with pytest.raises(ValueError, match="slave 'a' is registered already; registered: 'a'"):
        master.register_slave("a")
    assert (master.nr_slaves, pipe.identifier) == (1, "a")


@pytest.mark.parametrize(
    ("identifier", "error", "message"),
    [
        (0, ValueError, "identifier 0 is the master's"),
        ("a", TypeError, r"'a' is no identifier: .* sorted with the others \(1\)"),
        ([2], TypeError, r"\[2\] is no identifier: .* can be hashed"),
        (None, TypeError, "None is no identifier"),
    ],
)
def test_identifiers_that_are_none(identifier: Any, error: type[Exception], message: str) -> None:
    master = SyncMaster(add_up)
    master.register_slave(1)
    with pytest.raises(error, match=message):
        master.register_slave(identifier)
    assert master.nr_slaves == 1


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_a_timeout_is_more_than_nothing(timeout: float) -> None:
    with pytest.raises(ValueError, match="give seconds, or None for no limit"):
        SyncMaster(add_up, timeout=timeout)


def test_a_callback_can_be_called() -> None:
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
