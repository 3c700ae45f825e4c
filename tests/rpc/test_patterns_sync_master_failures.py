"""Masters and slaves that fail, leave, or do not come."""

from __future__ import annotations

import gc
import signal
import threading
from typing import Any

import pytest
from sync_rounds import Messages, Round, add_up, ended
from sync_rounds import calls as calls
from typing_extensions import override

from pparallel import SlavePipe, SyncMaster
from pparallel.errors import (
    CallTimeoutError,
    ClosedError,
    ConfigError,
    PeerLostError,
    RemoteError,
    is_consequence,
)
from pparallel.patterns.gathering import Gathering
from pparallel.patterns.slave import Codec
from pparallel.runtime import stopping
from pparallel.runtime.stopping import StopSignal
from pparallel.testing.patience import PATIENCE, until


def test_the_callback_raises(calls: Round) -> None:
    problem = ConfigError("no good", path="norm")

    def fail(messages: Messages) -> Messages:
        raise problem

    master = SyncMaster(fail)
    pipes = [master.register_slave(identifier) for identifier in (1, 2)]
    answers = [calls.call(pipe.run_slave, None) for pipe in pipes]
    with pytest.raises(ConfigError) as caught:
        master.run_master(None)
    assert caught.value is problem
    for answer in answers:
        error = ended(answer)
        assert isinstance(error, ConfigError)
        assert (str(error), error.path, error.__cause__) == ("norm: no good", "norm", problem)
        assert error is not problem
    with pytest.raises(ConfigError):  # the set has ended
        master.run_master(None)
    with pytest.raises(ConfigError):
        pipes[0].run_slave(None)


class UncopiableError(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


@pytest.mark.parametrize(
    ("kind", "args"), [(UncopiableError, (1, 2)), (SystemExit, (3,)), (KeyboardInterrupt, ())]
)
def test_what_cannot_spread_is_told(
    calls: Round, kind: type[BaseException], args: tuple[int, ...]
) -> None:
    problem = kind(*args)

    def fail(messages: Messages) -> Messages:
        raise problem

    master = SyncMaster(fail)
    answer = calls.call(master.register_slave(1).run_slave, None)
    mine = calls.call(master.run_master, None)
    assert ended(mine) is problem
    error = ended(answer)
    assert isinstance(error, RemoteError)
    assert kind.__name__ in error.type_name
    assert "in fail" in error.traceback
    assert error.__cause__ is problem


@pytest.mark.parametrize(
    ("results", "fault"),
    [
        (None, "not None"),
        (5, "not 5"),
        ([1, 2, 3], r"not \[1, 2, 3\]"),
        ({0: 1, 1: 2, 2: 3}, "not {0: 1"),
        ([], "there is nothing"),
        ([(1, 0), (0, 0), (2, 0)], "the master's first, but that of 1"),
        ([(0, 0), (2, 0)], "no result for 1"),
        ([(0, 0)], "no result for 1, 2"),
        ([(0, 0), (1, 0), (2, 0), (3, 0)], "but 3 is nobody's identifier"),
        ([(0, 0), (1, 0), (2, 0), (2, 1)], "one for each, but 2 has more"),
        ([(0, 0), ([], 0), (2, 0)], r"not \["),
    ],
)
def test_results_of_another_shape(calls: Round, results: Any, fault: str) -> None:
    master = SyncMaster(lambda _: results)
    answers = [calls.call(master.register_slave(key).run_slave, None) for key in (1, 2)]
    expected = r"the callback must return \[\(0, result\).*" + fault
    with pytest.raises(ValueError, match=expected):
        master.run_master(None)
    for answer in answers:
        with pytest.raises(ValueError, match=expected):
            answer.result(PATIENCE)


def test_slaves_that_do_not_come_are_named(calls: Round) -> None:
    master = SyncMaster(add_up, timeout=1.0)
    pipes = {identifier: master.register_slave(identifier) for identifier in "abcd"}
    answers = [calls.call(pipes[identifier].run_slave, 1) for identifier in "bd"]
    answers.append(calls.call(master.run_master, 1))
    for answer in answers:
        error = ended(answer)
        assert isinstance(error, CallTimeoutError)
        assert "the call to slave 'a', slave 'c' for round 1 was not answered within 1 s" in str(
            error
        )
    with pytest.raises(CallTimeoutError, match="slave 'a', slave 'c' for round 1"):
        pipes["a"].run_slave(1)  # too late


def test_a_master_that_does_not_come_is_named(calls: Round) -> None:
    master = SyncMaster(add_up, timeout=0.1)
    pipe = master.register_slave(1)
    assert isinstance(error := ended(calls.call(pipe.run_slave, 1)), CallTimeoutError)
    assert "the call to the master for round 1" in str(error)
    with pytest.raises(CallTimeoutError):
        master.run_master(1)


def test_the_callback_has_no_time_limit(calls: Round) -> None:
    def ponder(messages: Messages) -> Messages:
        threading.Event().wait(1.2)
        return add_up(messages)

    master = SyncMaster(ponder, timeout=1.0)
    answers = [calls.call(master.register_slave(key).run_slave, 1) for key in (1, 2)]
    assert master.run_master(1) == 3
    assert [answer.result(PATIENCE) for answer in answers] == [3, 3]


def test_a_slave_that_fails_wakes_all(calls: Round) -> None:
    master = SyncMaster(add_up)
    pipes = [master.register_slave(identifier) for identifier in (1, 2, 3)]
    answers = [calls.call(pipe.run_slave, 1) for pipe in pipes[:2]]
    answers.append(calls.call(master.run_master, 1))

    def forward() -> None:
        with pipes[2]:
            raise MemoryError("no room")

    problem = ended(calls.call(forward))
    for answer in answers:
        error = ended(answer)
        assert isinstance(error, PeerLostError)
        assert error.peer == "3"
        assert str(error) == "member '3' failed in round 1: MemoryError: no room"
        assert error.__cause__ is problem


def test_a_master_that_fails_wakes_all(calls: Round) -> None:
    master = SyncMaster(add_up)
    answer = calls.call(master.register_slave(1).run_slave, 1)

    def forward() -> None:
        with master:
            raise MemoryError("no room")

    assert isinstance(ended(calls.call(forward)), MemoryError)
    assert str(ended(answer)) == "member 'master' failed in round 1: MemoryError: no room"


def test_a_slave_that_leaves_too_early(calls: Round) -> None:
    master = SyncMaster(add_up)
    pipes = {identifier: master.register_slave(identifier) for identifier in "ab"}

    def replica(identifier: str, rounds: int) -> list[int]:
        with pipes[identifier] as pipe:
            return [pipe.run_slave(n) for n in range(rounds)]

    long, short = calls.call(replica, "a", 3), calls.call(replica, "b", 2)
    assert [master.run_master(n) for n in range(2)] == [0, 3]
    with pytest.raises(PeerLostError, match="member 'b' left after 2 rounds"):
        master.run_master(2)
    assert short.result(PATIENCE) == [0, 3]
    assert "member 'b' left after 2 rounds" in str(ended(long))


def test_a_master_that_leaves_too_early(calls: Round) -> None:
    with SyncMaster(add_up) as master:
        pipe = master.register_slave(1)
        answer = calls.call(lambda: [pipe.run_slave(n) for n in range(2)])
        assert master.run_master(1) == 1
    assert "member 'master' left after 1 round" in str(ended(answer))
    with pytest.raises(PeerLostError, match="left after 1 round"):
        pipe.run_slave(0)


def test_a_pipe_that_is_collected_has_left(calls: Round) -> None:
    master = SyncMaster(add_up)
    pipes = [master.register_slave(1), master.register_slave(2)]
    answers = [calls.call(pipes[0].run_slave, 1), calls.call(master.run_master, 1)]
    del pipes[1]
    gc.collect()
    for answer in answers:
        assert str(ended(answer)) == "member '2' left after 0 rounds"


def test_a_master_that_is_collected_has_left(calls: Round) -> None:
    master = SyncMaster(add_up)
    pipe = master.register_slave(1)
    answer = calls.call(pipe.run_slave, 1)
    del master
    gc.collect()
    assert str(ended(answer)) == "member 'master' left after 0 rounds"


def test_a_slave_that_leaves_during_the_callback(calls: Round) -> None:
    def callback(messages: Messages) -> Messages:
        pipes[1].close()
        return messages

    master = SyncMaster(callback)
    pipes = [master.register_slave(identifier) for identifier in (1, 2)]
    answers = [calls.call(pipe.run_slave, 1) for pipe in pipes]
    answers.append(calls.call(master.run_master, 1))
    assert [str(ended(each)) for each in answers] == ["member '2' left after 0 rounds"] * 3


def test_a_slave_that_leaves_before_the_callback(calls: Round) -> None:
    called: list[Messages] = []

    def callback(messages: Messages) -> Messages:
        called.append(messages)
        return messages

    gathering = Gathering(None, None)
    gathering.enrol(1, Codec())

    class LeavesMeanwhile(Codec):
        @override
        def opened(self, message: Any) -> Any:
            gathering.leave(1)
            return super().opened(message)

    gathering.enrol(2, LeavesMeanwhile())
    answers = [calls.call(gathering.run_slave, n, n) for n in (1, 2)]
    with pytest.raises(PeerLostError, match="member '1' left"):
        gathering.run_master(0, callback)
    assert called == [[(0, 0), (1, 1), (2, 2)]]  # never with messages that are gone
    assert [str(ended(each)) for each in answers] == ["member '1' left after 0 rounds"] * 2


def test_an_interrupt_of_the_master_wakes_all(calls: Round) -> None:
    master = SyncMaster(add_up)
    pipes = [master.register_slave(1), master.register_slave(2)]
    answer = calls.call(pipes[0].run_slave, 1)

    def interrupt() -> None:
        until(lambda: master._sets.current._whole is not None, "the master did not wait")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    interrupted = calls.call(interrupt)
    with pytest.raises(KeyboardInterrupt):
        master.run_master(1)
    interrupted.result(PATIENCE)
    assert str(ended(answer)) == "member 'master' failed in round 1: KeyboardInterrupt"


def test_a_slave_that_runs_twice_in_a_round(calls: Round) -> None:
    master = SyncMaster(add_up)
    pipe, other = master.register_slave(1), master.register_slave(2)
    answers = [calls.call(pipe.run_slave, n) for n in range(2)]
    expected = "slave 1 called run_slave a second time in round 1"
    for answer in answers:
        with pytest.raises(ValueError, match=expected):
            answer.result(PATIENCE)
    for method in (other.run_slave, master.run_master):
        with pytest.raises(ValueError, match=expected):
            method(1)


def test_a_master_that_runs_twice_in_a_round(calls: Round) -> None:
    master = SyncMaster(add_up)
    pipe = master.register_slave(1)
    for answer in [calls.call(master.run_master, n) for n in range(2)]:
        with pytest.raises(ValueError, match="the master called run_master a second time"):
            answer.result(PATIENCE)
    with pytest.raises(ValueError, match="the master called run_master a second time"):
        pipe.run_slave(1)


def test_a_rank_that_is_told_to_stop_wakes_all(calls: Round) -> None:
    master = SyncMaster(add_up)
    pipes = [master.register_slave(1), master.register_slave(2)]
    stop = StopSignal()

    def rank(pipe: SlavePipe) -> None:
        with stopping.running_under(stop):
            pipe.run_slave(1)

    answers = [calls.call(rank, pipes[0]), calls.call(pipes[1].run_slave, 1)]
    until(lambda: len(master._sets.current._here()) == 2, "the slaves did not wait")
    stop.set(RuntimeError("elsewhere"))
    for answer in answers:
        error = ended(answer)
        assert isinstance(error, ClosedError)
        assert is_consequence(error)
