"""Calls that came together: who runs them, and when their results are told."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from types import FunctionType, SimpleNamespace
from typing import Any, cast

import pytest
from typing_extensions import override

import pparallel
from pparallel.errors import ClosedError, SerializationError
from pparallel.interfaces.transport import Frames
from pparallel.runtime.rpc import wire
from pparallel.runtime.rpc.batches import LARGE, BatchRun
from pparallel.runtime.rpc.called import MANY_LATE, Called
from pparallel.runtime.rpc.endpoint import Endpoint
from pparallel.runtime.rpc.handlers import Handlers
from pparallel.runtime.rpc.quick import Quick
from pparallel.runtime.rpc.wire import Status
from pparallel.runtime.user_code import run
from pparallel.testing.patience import PATIENCE, until
from pparallel.testing.threads import in_threads
from pparallel_serializers import PickleSerializerConfig

SERIALIZER = pparallel.build(PickleSerializerConfig())
QUICK = Quick(SERIALIZER)
KEY = ("sender", 1, 2)


# -- the threads -------------------------------------------------------------------------------


@pytest.fixture
def handlers() -> Iterator[Handlers]:
    handlers = Handlers(3, "test")
    yield handlers
    handlers.close()
    assert handlers.join(PATIENCE)


class Jobs:
    """Jobs that note that they start; some block until they are let go."""

    def __init__(self) -> None:
        self.started: list[tuple[Any, str]] = []
        self.ended: list[Any] = []  # of those that block
        self.go = threading.Event()

    def __call__(self, *names: Any) -> list[Callable[[], None]]:
        return [partial(run, self._start, (each,)) for each in names]

    def names(self) -> list[Any]:
        return [name for name, _ in self.started]

    def threads(self) -> set[str]:
        return {thread for _, thread in self.started}

    def _start(self, name: Any) -> None:
        self.started.append((name, threading.current_thread().name))
        if str(name).startswith("block"):
            self.go.wait(PATIENCE)
            self.ended.append(name)


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    found = Jobs()
    yield found
    found.go.set()


def test_jobs_that_are_reserved_run_in_the_thread_that_reserved_them(
    handlers: Handlers, jobs: Jobs
) -> None:
    acts: list[Callable[[], None]] = []
    stream = handlers.reserve("key", jobs(1, 2), acts.append)
    assert stream is not None
    assert handlers.reserve("key", jobs(3), acts.append) is stream
    assert len(acts) == 1
    assert not jobs.started
    acts[0]()
    assert jobs.names() == [1, 2, 3]
    assert jobs.threads() == {threading.current_thread().name}
    assert not handlers._streams
    assert handlers._running == 0


def test_what_is_submitted_behind_them_starts_after_them(handlers: Handlers, jobs: Jobs) -> None:
    acts: list[Callable[[], None]] = []
    assert handlers.reserve("key", jobs(1, 2), acts.append) is not None
    handlers.submit("key", *jobs(3, 4))
    acts[0]()
    until(lambda: len(jobs.started) == 4, "not all were run")
    assert jobs.names() == [1, 2, 3, 4]


def test_others_take_over_from_one_that_takes_long(handlers: Handlers, jobs: Jobs) -> None:
    acts: list[Callable[[], None]] = []
    stream = handlers.reserve("key", jobs(1, "block", 3, "block too", 5), acts.append)
    assert stream is not None
    runs = threading.Thread(target=acts[0], name="reserved")
    runs.start()
    until(lambda: "block" in jobs.names(), "it was not run")
    time.sleep(0.002)
    handlers.hand_over(stream)
    until(lambda: len(jobs.started) == 5, "nobody took over")
    assert jobs.names() == [1, "block", 3, "block too", 5]
    assert [name for name, thread in jobs.started if thread == "reserved"] == [1, "block"]
    assert handlers.reserve("key", jobs(6), acts.append) is None  # its jobs take long
    jobs.go.set()
    runs.join(PATIENCE)
    until(lambda: handlers._running == 0, "one still runs")
    handlers.hand_over(stream)  # harmless now


def test_their_thread_comes_when_another_has_taken_over(handlers: Handlers, jobs: Jobs) -> None:
    acts: list[Callable[[], None]] = []
    stream = handlers.reserve("key", jobs("block"), acts.append)
    assert stream is not None

    def take_long() -> None:  # what their thread runs before them
        handlers.hand_over(stream)
        until(lambda: "block" in jobs.names(), "nobody took over")
        handlers.submit("key", *jobs(1))

    run(take_long, ())
    acts[0]()
    handlers.submit("key", *jobs(2))
    until(lambda: jobs.names() == ["block", 1, 2], "those behind it were not started")
    assert not jobs.ended, "they started when it had ended"


def test_a_job_that_waits_lets_those_behind_it_go_on(handlers: Handlers, jobs: Jobs) -> None:
    acts: list[Callable[[], None]] = []
    waits = threading.Event()

    def wait() -> None:
        with handlers.waiting():
            waits.set()
            assert jobs.go.wait(PATIENCE)

    assert handlers.reserve("key", [partial(run, wait, ()), *jobs(1)], acts.append) is not None
    runs = threading.Thread(target=acts[0])
    runs.start()
    assert waits.wait(PATIENCE)
    until(lambda: jobs.names() == [1], "nobody took over")
    jobs.go.set()
    runs.join(PATIENCE)

    jobs.go.clear()
    waits.clear()
    assert handlers.reserve("other", [partial(run, wait, ())], acts.append) is not None
    runs = threading.Thread(target=acts[1])
    runs.start()
    assert waits.wait(PATIENCE)
    handlers.reserve("other", jobs(2), acts.append)  # when it waits already
    until(lambda: jobs.names() == [1, 2], "nobody took over")
    jobs.go.set()
    runs.join(PATIENCE)


def test_what_is_submitted_behind_them_is_not_taken_over_before_them(
    handlers: Handlers, jobs: Jobs
) -> None:
    acts: list[Callable[[], None]] = []
    assert handlers.reserve("key", jobs("block", 2), acts.append) is not None
    runs = threading.Thread(target=acts[0])
    runs.start()
    until(lambda: "block" in jobs.names(), "it was not run")
    handlers.submit("key", *jobs(3))
    handlers.reserve("key", jobs(4), acts.append)
    until(lambda: len(jobs.started) == 4, "nobody took over")
    assert jobs.names() == ["block", 2, 3, 4]
    jobs.go.set()
    runs.join(PATIENCE)


def test_jobs_that_come_when_their_thread_goes(
    handlers: Handlers, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    acts: list[Callable[[], None]] = []
    leave = handlers.leave

    def leaves() -> None:
        monkeypatch.undo()
        in_threads(1, lambda _: handlers.reserve("key", jobs("late"), acts.append))
        leave()

    assert handlers.reserve("key", jobs(1), acts.append) is not None
    monkeypatch.setattr(handlers, "leave", leaves)
    for act in acts:  # one more, where what came late has been reserved anew
        act()
    until(lambda: len(jobs.started) == 2, "it was lost")
    assert jobs.names() == [1, "late"]
    until(lambda: handlers._running == 0 and not handlers._streams, "one still runs")


@pytest.mark.usefixtures("impatient_interpreter")
def test_jobs_that_come_and_are_handed_over_run_in_order(handlers: Handlers, jobs: Jobs) -> None:
    acts: list[Callable[[], None]] = []
    many = 30

    def work(thread: int) -> None:
        for n in range(many):
            if thread == 0:  # receives, and runs
                names = range(3 * n, 3 * n + 3)
                if handlers.reserve("key", jobs(*names), acts.append) is None:
                    handlers.submit("key", *jobs(*names))
                if n % 3 == 2 and acts:
                    acts.pop()()
            elif (stream := handlers._streams.get("key")) is not None:
                handlers.hand_over(stream)
        if thread == 0 and acts:
            acts.pop()()

    in_threads(2, work)
    until(lambda: len(jobs.started) == 3 * many, "not all were run")
    assert jobs.names() == list(range(3 * many))
    until(lambda: handlers._running == 0 and not handlers._streams, "one still runs")


class Slowly(set[Any]):
    """Has another thread run where a handler thread takes something out."""

    @override
    def discard(self, each: Any) -> None:
        super().discard(each)
        if "handler" in threading.current_thread().name:
            time.sleep(0.005)


def test_who_takes_over_leaves_no_moment_in_which_two_take(handlers: Handlers, jobs: Jobs) -> None:
    handlers._behind = Slowly()
    acts: list[Callable[[], None]] = []
    names: list[int] = []

    def decode_late(n: int) -> None:
        if n == 1:
            time.sleep(0.008)  # it has not entered its function yet
        run(names.append, (n,))

    def first() -> None:
        names.append(0)
        time.sleep(0.007)

    rest = [partial(decode_late, n) for n in range(1, 6)]
    stream = handlers.reserve("key", [partial(run, first, ()), *rest], acts.append)
    assert stream is not None
    runs = threading.Thread(target=acts[0])
    runs.start()
    time.sleep(0.001)
    handlers.hand_over(stream)
    runs.join(PATIENCE)
    until(lambda: len(names) == 6, "not all were run")
    assert names == list(range(6))


def test_there_is_no_room_or_no_need(handlers: Handlers, jobs: Jobs) -> None:
    for n in range(3):
        handlers.submit(n, *jobs("block"))
    until(lambda: len(jobs.started) == 3, "they were not run")
    assert handlers.reserve("key", jobs(1), cast("Any", None)) is None  # as many run as may
    assert handlers.reserve(0, jobs(1), cast("Any", None)) is None  # others are before it
    jobs.go.set()
    until(lambda: handlers._running == 0, "one still runs")
    assert handlers.enter("key", quickly=True)
    assert handlers.reserve("other", jobs(1), cast("Any", None)) is None  # inside another
    handlers.leave()
    handlers.close()
    with pytest.raises(ClosedError):
        handlers.reserve("key", jobs(1), cast("Any", None))


def test_what_is_reserved_at_the_end_is_not_run(jobs: Jobs) -> None:
    handlers, acts = Handlers(1, "test"), list[Callable[[], None]]()
    assert handlers.reserve("key", jobs(1), acts.append) is not None
    handlers.close()
    acts[0]()
    assert not jobs.started
    assert handlers.join(PATIENCE)


# -- results -----------------------------------------------------------------------------------


@pytest.fixture
def endpoint() -> Any:
    def failed(error: BaseException) -> Frames:
        return wire.join(Status.FAILED, [repr(error).encode()])

    late: dict[Any, Any] = {}
    return SimpleNamespace(
        quick=QUICK,
        serializer=SERIALIZER,
        failed=failed,
        late_batches=late,
        keep_late=late.__setitem__,
    )


@pytest.fixture(autouse=True)
def _acting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pparallel.runtime.rpc.current.act_for", lambda _: None)


def double(n: int) -> int:
    return 2 * n


def listed(n: int) -> list[int]:
    return [n]


def fail(n: int) -> None:
    raise LookupError(n)


def batch(endpoint: Any, *functions: Any) -> BatchRun:
    counted = [(QUICK.name(each), 1) for each in functions]
    request = counted, [(n,) for n in range(len(functions))], [None] * len(functions)
    return BatchRun(cast("Endpoint", endpoint), KEY, request)


def told(reply: Frames | Future[Frames]) -> tuple[list[int], list[Any], dict[int, Frames]]:
    """Return which results a reply has, plain ones and the frames of others."""
    frames = reply.result(0) if isinstance(reply, Future) else reply
    indices, values, framed = QUICK.read(frames[1])
    at, others = 2, {}
    for index, count in framed:
        others[index] = frames[at : at + count]
        at += count
    assert at == len(frames)
    return list(indices), list(values), others


def test_all_results_are_told_at_once(endpoint: Any) -> None:
    run = batch(endpoint, double, listed, fail, double)
    reply = run.reply()
    for each in run.jobs():
        assert not cast("Future[Frames]", reply).done()
        each()
    indices, values, others = told(reply)
    assert (indices, values) == ([0, 3], [0, 6])
    assert SERIALIZER.loads(wire.split(others[1]).body) == [1]
    assert others[2][1:] == [b"LookupError(2)"]
    assert not endpoint.late_batches


def test_those_that_are_there_do_not_wait_for_one_that_takes_long(endpoint: Any) -> None:
    run = batch(endpoint, double, double, double, double)
    reply = cast("Future[Frames]", run.reply())
    run.jobs()[0]()
    run.jobs()[2]()
    assert not reply.done()
    run.tick()
    assert told(reply) == ([0, 2], [0, 4], {})
    assert endpoint.late_batches == {KEY: run}
    rest = cast("Future[Frames]", run.reply())
    assert not rest.done()
    run.jobs()[3]()
    assert told(rest) == ([3], [6], {})  # at once, from now on
    run.jobs()[1]()
    assert endpoint.late_batches == {KEY: run}
    assert told(run.reply()) == ([1], [2], {})  # it had ended before it was asked for
    assert not endpoint.late_batches


def test_nothing_is_told_before_there_is_something(endpoint: Any) -> None:
    run = batch(endpoint, double)
    reply = cast("Future[Frames]", run.reply())
    run.tick()
    assert not reply.done()
    run.jobs()[0]()
    assert told(reply) == ([0], [0], {})
    assert not endpoint.late_batches


def long(n: int) -> bytes:
    return bytes([n]) * LARGE


def test_large_results_are_told_one_after_another(endpoint: Any) -> None:
    run = batch(endpoint, long, double, long, long)
    reply = cast("Future[Frames]", run.reply())
    for each in run.jobs():
        each()
    found = {}
    indices, values, others = told(reply)
    assert (indices, values) == ([1], [2])
    for _ in range(3):
        assert len(others) == 1
        found.update({n: QUICK.read(frames[1]) for n, frames in others.items()})
        if len(found) < 3:
            assert endpoint.late_batches == {KEY: run}
            indices, values, others = told(run.reply())
            assert not indices
    assert found == {n: long(n) for n in (0, 2, 3)}
    assert not endpoint.late_batches


def test_a_tick_that_comes_when_all_is_told(endpoint: Any) -> None:
    run = batch(endpoint, double)
    reply = run.reply()
    run.jobs()[0]()
    run.tick()
    assert told(reply) == ([0], [0], {})
    assert not endpoint.late_batches


def test_what_is_no_call_fails_alone(endpoint: Any) -> None:
    name, other = QUICK.name(cast("FunctionType", double)), ("no", "module")
    names = [(b"", 1), (name, 1), (other, 1), (7, 1), (("json", "none"), 1), (name, 1)]
    run = BatchRun(endpoint, KEY, (names, [(1,)] * 5 + [7], [None] * 6))
    reply = run.reply()
    for each in run.jobs():
        each()
    indices, values, others = told(reply)
    assert (indices, values) == ([1], [2])
    assert sorted(others) == [0, 2, 3, 4, 5]
    assert all(wire.split(each).kind == Status.FAILED for each in others.values())


@pytest.mark.parametrize(
    "wrong",
    [
        7,
        (),
        ([], [], [], []),
        ([], [(1,)], [None]),
        ([("x", "y")], [(1,)], [None]),
        ([(("x", "y"), 2)], [(1,)], [None]),
        ([(("x", "y"), 10**15)], [(1,)], [None]),
        ([(("x", "y"), -1)], [(1,)], [None]),
        ([(("x", "y"), 1)], [(1,)], []),
    ],
)
def test_what_is_no_batch_is_refused(endpoint: Any, wrong: Any) -> None:
    with pytest.raises((SerializationError, TypeError, ValueError)):
        BatchRun(endpoint, KEY, wrong)


def test_a_batch_without_calls_is_answered(endpoint: Any) -> None:
    assert told(BatchRun(endpoint, KEY, ([], [], [])).reply()) == ([], [], {})


@pytest.mark.usefixtures("impatient_interpreter")
def test_every_result_is_told_once_whatever_happens_at_the_same_time(
    endpoint: Any,
) -> None:
    many = 12
    runs = [batch(endpoint, *[double, listed] * (many // 2)) for _ in range(30)]
    jobs = [each.jobs() for each in runs]
    asked = [each.reply() for each in runs]
    found: list[list[int]] = [[] for _ in runs]
    start = threading.Barrier(3)

    def work(thread: int) -> None:
        for n, each in enumerate(runs):
            start.wait(PATIENCE)
            if thread == 2:  # it is late, and its sender asks for the rest
                each.tick()
                until(partial(_told_all, n), "not all was told")
            else:
                for job in jobs[n][thread::2]:
                    job()

    def _told_all(n: int) -> bool:
        reply = asked[n]
        if isinstance(reply, Future) and not reply.done():
            return False
        indices, _, others = told(reply)
        found[n] += [*indices, *others]
        if len(found[n]) < many:
            asked[n] = runs[n].reply()
        return len(found[n]) >= many

    in_threads(3, work)
    assert [sorted(each) for each in found] == [list(range(many))] * len(runs)
    assert not endpoint.late_batches


def test_batches_that_nobody_asks_for_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    class Alone(Called):
        name, serializer = "alone", SERIALIZER

    called = Alone()
    running, over = (
        cast("BatchRun", SimpleNamespace(over=each)) for each in (math.inf, time.monotonic())
    )
    for n in range(MANY_LATE):
        called.keep_late(("", 0, n), running if n % 2 else over)
    assert len(called.late_batches) == MANY_LATE
    monkeypatch.setattr("pparallel.runtime.rpc.called.GIVEN_UP", -1.0)
    for n in range(MANY_LATE, 2 * MANY_LATE):
        called.keep_late(("", 0, n), running)
    assert all(each is running for each in called.late_batches.values())
