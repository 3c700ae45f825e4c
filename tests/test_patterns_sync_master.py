"""SyncMaster and SlavePipe between threads of one process."""

from __future__ import annotations

import gc
import pickle
import random
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
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

Messages = list[tuple[Any, Any]]


def add_up(messages: Messages) -> Messages:
    total = sum(message for _, message in messages)
    return [(identifier, total) for identifier, _ in messages]


def echo(messages: Messages) -> Messages:
    return messages


def ended(future: Future[Any]) -> BaseException:
    """Return what the call raised."""
    error = future.exception(PATIENCE)
    assert error is not None
    return error


class Round:
    """Calls of participants, each in a thread of its own."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []

    def call(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(function(*args))
            except BaseException as error:  # noqa: BLE001 - the test looks at it
                future.set_exception(error)

        thread = threading.Thread(target=run)
        thread.start()
        self._threads.append(thread)
        return future

    def end(self) -> None:
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()


@pytest.fixture
def calls() -> Any:
    calls = Round()
    yield calls
    calls.end()


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


def test_many_rounds_of_many_slaves(scale: Callable[[int], int]) -> None:
    rounds, slaves = scale(2000), 12
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


def test_a_new_set_for_each_round(calls: Round, scale: Callable[[int], int]) -> None:
    master = SyncMaster(add_up)
    for n in range(scale(300)):
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


def until_registered(master: SyncMaster, pipe: SlavePipe) -> SlavePipe:
    """Register a slave when *pipe* and the master wait."""

    def both_wait() -> bool:
        gathering = master._sets.current
        return gathering._whole is not None and len(gathering._here()) == 1

    until(both_wait, "the two did not wait")
    return master.register_slave("new")


# -- failures ---------------------------------------------------------------------------------


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
    master = SyncMaster(add_up, timeout=0.1)
    pipes = {identifier: master.register_slave(identifier) for identifier in "abcd"}
    answers = [calls.call(pipes[identifier].run_slave, 1) for identifier in "bd"]
    answers.append(calls.call(master.run_master, 1))
    for answer in answers:
        error = ended(answer)
        assert isinstance(error, CallTimeoutError)
        assert "the call to slave 'a', slave 'c' for round 1 was not answered within 0.1 s" in str(
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
        threading.Event().wait(0.3)
        return add_up(messages)

    master = SyncMaster(ponder, timeout=0.05)
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


def test_whatever_happens_everybody_returns(calls: Round, scale: Callable[[int], int]) -> None:
    """Participants that fail, leave or go on at random end with a result or a named error."""
    chance = random.Random(0)

    def participant(run: Callable[[int], Any], end: Any, plan: list[str]) -> list[str]:
        outcomes = []
        with end:
            for step in plan:
                if step == "fail":
                    raise LookupError("planned")
                outcomes.append(f"sum {run(1)}")
        return outcomes

    for _ in range(scale(500)):
        master = SyncMaster(add_up, timeout=PATIENCE)
        pipes = [master.register_slave(n) for n in range(1, 5)]
        plans = [
            ["run"] * chance.randint(1, 3) + (["fail"] if chance.random() < 0.1 else [])
            for _ in range(5)
        ]
        answers = [calls.call(participant, master.run_master, master, plans[0])]
        answers += [
            calls.call(participant, pipe.run_slave, pipe, plan)
            for pipe, plan in zip(pipes, plans[1:], strict=True)
        ]
        for answer, plan in zip(answers, plans, strict=True):
            error = answer.exception(PATIENCE)
            if error is None:
                assert answer.result() == ["sum 5"] * len(plan)
            elif not isinstance(error, LookupError):
                assert isinstance(error, PeerLostError)
                assert error.peer in ("master", "1", "2", "3", "4")


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
