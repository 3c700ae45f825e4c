"""``pparallel.compat.jactorch``: what its document says, and what hung in the original."""

from __future__ import annotations

import gc
import queue
from typing import Any

import pytest
from sync_rounds import Messages, Round, add_up, ended
from sync_rounds import calls as calls

from pparallel.compat.jactorch import PATIENCE, SlavePipe, SyncMaster
from pparallel.errors import CallTimeoutError, PeerLostError


def test_a_round(calls: Round) -> None:
    seen: list[Messages] = []

    def callback(messages: Messages) -> Messages:
        seen.append(messages)
        return add_up(messages)

    master = SyncMaster(callback)
    assert master.nr_slaves == 0
    pipes = [master.register_slave(identifier) for identifier in (2, 1)]
    assert master.nr_slaves == 2
    answers = [calls.call(pipe.run_slave, pipe.identifier * 10) for pipe in pipes]
    assert master.run_master(1) == 31
    assert [each.result(PATIENCE) for each in answers] == [31, 31]
    assert seen == [[(0, 1), (1, 10), (2, 20)]]


def test_a_registration_after_a_run_begins_a_new_set(calls: Round) -> None:
    master = SyncMaster(add_up)
    for identifiers in ((1, 2), (1,), (1, 2, 3)):
        pipes = [master.register_slave(each) for each in identifiers]
        assert master.nr_slaves == len(identifiers)
        for _ in range(3):
            answers = [calls.call(pipe.run_slave, 1) for pipe in pipes]
            assert master.run_master(1) == len(identifiers) + 1
            assert [each.result(PATIENCE) for each in answers] == [len(identifiers) + 1] * len(
                pipes
            )


def test_a_pipe_is_a_named_tuple() -> None:
    pipe = SyncMaster(add_up).register_slave(5)
    assert isinstance(pipe, tuple)
    assert (pipe.identifier, *pipe[1:]) == (5, pipe.queue, pipe.result)
    assert SlavePipe._fields == ("identifier", "queue", "result")
    assert pipe.count(5) == 1
    assert pipe.index(5) == 0


def test_a_pipe_made_by_hand() -> None:
    """It sends its message, takes its result, and says that it has it."""
    sent, answers = queue.SimpleQueue[Any](), queue.SimpleQueue[Any]()
    answers.put("result")
    assert SlavePipe(identifier=3, queue=sent, result=answers).run_slave("message") == "result"
    assert [sent.get(), sent.get()] == [(3, "message"), True]


def test_a_slave_that_fails_wakes_all(calls: Round) -> None:
    """The original waits for ever for a replica that ran out of memory (issues 3, 40, 44, 46)."""
    master = SyncMaster(add_up)

    def replica(identifier: int, fails: bool) -> Any:
        pipe = pipes.pop(identifier)
        if fails:
            raise MemoryError("out of memory")
        return pipe.run_slave(1)

    pipes = {each: master.register_slave(each) for each in (1, 2)}
    waiting = calls.call(master.run_master, 1)
    fine, failing = calls.call(replica, 1, False), calls.call(replica, 2, True)
    assert isinstance(ended(failing), MemoryError)
    failing = None  # type: ignore[assignment] # what it raised holds the pipe
    gc.collect()
    for each in (waiting, fine):
        with pytest.raises(PeerLostError, match="2"):
            each.result(PATIENCE)


def test_replicas_that_differ(calls: Round) -> None:
    """One has a layer less: it runs one round, the others two; the original waits for it."""
    master = SyncMaster(add_up)

    def replica(identifier: int, rounds: int) -> list[Any]:
        pipe = pipes.pop(identifier)
        return [pipe.run_slave(1) for _ in range(rounds)]

    pipes = {each: master.register_slave(each) for each in (1, 2)}
    more, less = calls.call(replica, 1, 2), calls.call(replica, 2, 1)
    assert master.run_master(1) == 3
    assert less.result(PATIENCE) == [3]
    with pytest.raises(PeerLostError, match="2"):
        master.run_master(1)
    with pytest.raises(PeerLostError, match="2"):
        more.result(PATIENCE)


def test_who_does_not_come_is_named(calls: Round) -> None:
    """Somebody keeps the pipe and never uses it: only time tells."""
    master = SyncMaster(add_up, timeout=0.2)
    pipes = [master.register_slave(each) for each in ("left", "right")]
    answer = calls.call(pipes[0].run_slave, 1)
    with pytest.raises(CallTimeoutError, match="right"):
        master.run_master(1)
    assert isinstance(ended(answer), CallTimeoutError)


def test_a_callback_that_raises_wakes_all(calls: Round) -> None:
    def fail(messages: Messages) -> Messages:
        raise KeyError("mean")

    master = SyncMaster(fail)
    answer = calls.call(master.register_slave(1).run_slave, 1)
    with pytest.raises(KeyError, match="mean"):
        master.run_master(1)
    assert isinstance(ended(answer), KeyError)


@pytest.mark.parametrize("results", [[], [(1, 2), (0, 1)], [(0, 1)], [(0, 1), (1, 2), (3, 4)]])
def test_results_of_another_shape(calls: Round, results: Messages) -> None:
    """The original asserts the first, and leaves slaves without a result waiting."""
    master = SyncMaster(lambda _: results)
    answer = calls.call(master.register_slave(1).run_slave, 1)
    with pytest.raises(ValueError, match="the callback must return"):
        master.run_master(1)
    assert isinstance(ended(answer), ValueError)


def test_a_master_that_is_collected_wakes_its_slaves(calls: Round) -> None:
    master = SyncMaster(add_up)
    answer = calls.call(master.register_slave(1).run_slave, 1)
    del master
    gc.collect()
    assert isinstance(ended(answer), PeerLostError)
