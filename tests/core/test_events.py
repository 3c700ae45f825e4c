from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import pytest
from typing_extensions import override

import pparallel
from pparallel.errors import ClosedError, ConfigError
from pparallel.interfaces.pool import Batch, Sink
from pparallel.plugin import hookimpl
from pparallel.registry import Registry
from pparallel.runtime.events import (
    Event,
    Events,
    MemberEnded,
    MemberStarted,
    PeerLost,
    Reported,
    TaskDone,
    TaskEvent,
    TaskFailed,
    TaskQueued,
)
from pparallel.runtime.member import Member
from pparallel.runtime.task_events import watch_tasks
from pparallel_local import SerialPoolConfig
from pparallel_local.serial_pool import SerialPool

POOLS = ("serial", "thread")


def observed(pool: str, use: Callable[[pparallel.Pool], object]) -> list[Event]:
    """Return the events of tasks while *use* uses a pool of two workers."""
    seen: list[Event] = []
    with pparallel.build({"pool": {"backend": pool, "size": 2}}) as rt:
        rt.events.subscribe(seen.append, TaskEvent)
        use(rt.pool)
    return seen


def ends(events: Iterable[Event]) -> Counter[str]:
    """Count the tasks that were queued, and how they ended."""
    counts: Counter[str] = Counter()
    for each in events:
        counts[each.kind] += getattr(each, "tasks", 1)
    return counts


def halve(n: int) -> int:
    if n % 2:
        message = f"{n} is odd"
        raise ValueError(message)
    return n // 2


def test_a_member_tells_when_it_starts_and_ends() -> None:
    seen: list[Event] = []
    rt = pparallel.build()
    rt.events.subscribe(seen.append)
    with suppress(LookupError), rt:
        rt.report(step=3, loss=0.25)
        raise LookupError
    started, report, ended = (json.loads(json.dumps(each.to_dict())) for each in seen)
    assert list(started.items())[:2] == [("kind", "member.started"), ("member", "member-0")]
    assert (report["kind"], report["values"]) == ("report", {"step": 3, "loss": 0.25})
    assert (ended["kind"], ended["error"]) == ("member.ended", "LookupError()")
    assert started["time"] <= report["time"] <= ended["time"]


def test_kinds_are_chosen_and_a_subscription_ends() -> None:
    events = Events("me")
    everything: list[Event] = []
    reports: list[Event] = []
    wanted = [(events.listening, events.wants(TaskEvent), events.wants(TaskDone))]
    ends = [
        events.subscribe(everything.append),
        events.subscribe(reports.append, Reported, TaskFailed),
    ]
    for kind in ("all", "some", "none"):
        events.emit(MemberStarted("me", 0))
        events.emit(Reported("me", {"n": kind}))
        wanted.append((events.listening, events.wants(TaskEvent), events.wants(TaskDone)))
        if ends:
            end = ends.pop(0)
            end()
            end()
    assert wanted == [(False,) * 3, (True,) * 3, (True, True, False), (False,) * 3]
    assert [each.kind for each in everything] == ["member.started", "report"]
    assert [each.to_dict()["values"]["n"] for each in reports] == ["all", "some"]


def test_a_listener_that_fails_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    events = Events("me")
    seen: list[Event] = []
    events.subscribe(lambda _: 1 / 0)
    events.subscribe(seen.append)
    events.emit(Reported("me", {}))
    assert len(seen) == 1
    assert "listener failed" in caplog.text


def test_a_stream_is_read_in_order() -> None:
    with pparallel.build() as rt, rt.events.stream(Reported) as stream:

        def write() -> None:
            for n in range(100):
                rt.report(n=n)

        writer = threading.Thread(target=write)
        writer.start()
        values = [stream.get(20) for _ in range(100)]
        writer.join()
        assert stream.get(0.01) is None
        rt.report(n="last")
        stream.close()
        rt.report(n="too late")
        rest = list(stream)
    assert [each.values["n"] for each in values if isinstance(each, Reported)] == list(range(100))
    assert [each.to_dict()["values"] for each in rest] == [{"n": "last"}]


def test_a_stream_that_nobody_reads_is_bounded() -> None:
    events = Events("me")
    with events.stream(size=3) as stream:
        for n in range(10):
            events.emit(MemberStarted("me", n))
    assert [each.to_dict()["rank"] for each in stream] == [7, 8, 9]
    assert (stream.left_out, events.listening) == (7, False)
    with pytest.raises(ValueError, match="at least 1 event, not 0"):
        events.stream(size=0)


@pytest.mark.parametrize("pool", POOLS)
def test_a_task_is_queued_started_and_done(pool: str) -> None:
    seen = observed(pool, lambda pool: pool.submit(halve, 4).result())
    queued, started, done = (each.to_dict() for each in seen)
    assert [each.kind for each in seen] == ["task.queued", "task.started", "task.done"]
    assert (queued["pool"], queued["tasks"], queued["function"]) == ("pool", 1, "halve")
    assert started["worker"] in ("worker-0", "worker-1")
    assert started["index"] == done["index"] == 0
    assert queued["batch"] == started["batch"] == done["batch"]
    failed = observed(pool, lambda pool: pool.submit(halve, 3).exception())[-1]
    assert (failed.kind, failed.to_dict()["error"]) == ("task.failed", "ValueError('3 is odd')")


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("call", ["map", "imap", "imap_unordered", "starmap"])
def test_each_task_is_told_of_once(pool: str, call: str) -> None:
    items = [(2 * n,) for n in range(50)] if call == "starmap" else [2 * n for n in range(50)]
    results: list[int] = []
    seen = observed(pool, lambda pool: results.extend(getattr(pool, call)(halve, items)))
    assert sorted(results) == list(range(50))
    assert ends(seen) == {"task.queued": 50, "task.started": 50, "task.done": 50}


def test_the_rest_of_a_failed_map_is_dropped() -> None:
    def use(pool: pparallel.Pool) -> None:
        with pytest.raises(ValueError, match="5 is odd"):
            pool.map(halve, [2, 4, 5, 6, 8, 10])

    assert ends(observed("serial", use)) == {
        "task.queued": 6,
        "task.started": 3,
        "task.done": 2,
        "task.failed": 1,
        "task.dropped": 3,
    }


def test_a_cancelled_call_is_dropped() -> None:
    gate = threading.Event()

    def use(pool: pparallel.Pool) -> None:
        blocking = [pool.submit(gate.wait, 20) for _ in range(2)]
        waiting = pool.map_async(halve, range(7))
        assert waiting.cancel()
        gate.set()
        assert all(each.result() for each in blocking)
        pool.close()
        with pytest.raises(ClosedError):
            pool.map(halve, [2, 4])

    seen = [each.to_dict() for each in observed("thread", use)]
    assert [each["tasks"] for each in seen if each["kind"] == "task.dropped"] == [7, 2]


def test_a_terminated_pool_fails_what_it_has() -> None:
    gate = threading.Event()

    def use(pool: pparallel.Pool) -> None:
        running = pool.submit(gate.wait, 20)
        waiting = pool.submit(halve, 2)
        pool.terminate()
        gate.set()
        assert isinstance(waiting.exception(), ClosedError)
        assert isinstance(running.exception(), ClosedError)

    counts = ends(observed("thread", use))
    assert counts["task.failed"] == counts["task.queued"] == 2


@pytest.mark.parametrize("call", ["map_async", "imap", "submit"])
def test_every_queued_task_ends_once(call: str) -> None:
    items = [2, 3, 4, 5, 6]

    def use(pool: pparallel.Pool) -> None:
        if call == "submit":
            assert all(each.wait() for each in [pool.submit(halve, each) for each in items])
        elif call == "map_async":
            assert pool.map_async(halve, items).wait()
        else:
            stream = pool.imap(halve, items)
            for _ in items:
                with suppress(ValueError):
                    next(stream)
        pool.close()
        pool.join()

    counts = ends(observed("thread", use))
    ended = counts["task.done"] + counts["task.failed"] + counts["task.dropped"]
    assert ended == counts["task.queued"] == len(items)


def test_a_task_that_is_run_again() -> None:
    """No pool that comes along retries yet; whoever does tells its sink."""
    events, seen = Events("me"), list[Event]()
    events.subscribe(seen.append)
    error = OSError("away")

    class Retrying(SerialPool):
        @override
        def carry(self, batch: Batch, sink: Sink) -> None:
            assert sink.observed
            sink.started(0, "worker-1")
            sink.retried(0, error)
            sink.started(0, "worker-2")
            sink.abort(error)

    pool = Retrying(SerialPoolConfig(), member=Member())
    watch_tasks(events, pool, "pool")
    assert pool.submit(halve, 2).exception() is error
    kinds = ["task.queued", "task.started", "task.retried", "task.started", "task.failed"]
    assert [each.kind for each in seen] == kinds
    assert [getattr(each, "error", None) for each in seen] == [None, None, error, None, error]


def test_pools_of_a_job_are_told_apart() -> None:
    seen: list[Event] = []
    config = {"extra": {"small": {"interface": "pool", "size": 1}}}
    with pparallel.build(config) as rt:
        rt.events.subscribe(seen.append, TaskQueued)
        rt.pool.submit(halve, 2).result()
        rt["small"].submit(halve, 2).result()
    assert [each.to_dict()["pool"] for each in seen] == ["pool", "small"]


def test_a_peer_that_is_lost() -> None:
    seen: list[Event] = []

    def work(rt: pparallel.Runtime) -> bool:
        if rt.rank == 1:
            return True  # it waits for the other only a moment
        with rt.events.stream(PeerLost) as lost:
            return lost.get(20) is not None

    config = {"members": 2, "close_timeout": 0.01}
    assert pparallel.launch(config, work, listener=seen.append) == [True, True]
    (lost,) = [each for each in seen if isinstance(each, PeerLost)]
    assert (lost.member, lost.peer) == ("member-0", "member-1")


def test_the_end_of_the_job_wakes_a_reader() -> None:
    def work(rt: pparallel.Runtime) -> None:
        with rt.events.stream() as stream:
            rt.group().barrier()
            if rt.rank == 1:
                message = "enough"
                raise LookupError(message)
            for _ in stream:
                pass

    with pytest.raises(LookupError, match="enough"):
        pparallel.launch({"members": 2}, work)


def test_a_stream_ends_with_its_member() -> None:
    with pparallel.build() as rt:
        stream = rt.events.stream(MemberEnded)
        stream.__enter__()
    assert [each.kind for each in stream] == ["member.ended"]
    with rt.events.stream() as late:
        assert late.get() is None


def test_a_listener_of_a_whole_job() -> None:
    seen: list[Event] = []

    def work(rt: pparallel.Runtime) -> None:
        rt.report(rank=rt.rank)

    pparallel.launch({"members": 3}, work, listener=seen.append)
    for rank in range(3):
        own = [each.to_dict() for each in seen if each.member == f"member-{rank}"]
        assert [each["kind"] for each in own] == ["member.started", "report", "member.ended"]
        assert own[1]["values"] == {"rank": rank}
    pparallel.launch(None, work, listener=seen.append)
    assert [each.kind for each in seen[9:]] == ["member.started", "report", "member.ended"]


class Listening:
    """A plugin that only listens."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    @hookimpl
    def pparallel_listeners(self, member: pparallel.Member) -> list[Callable[[Event], object]]:
        return [lambda event: self.seen.append((member.name, event.kind))]


class Failing:
    """A plugin that cannot listen."""

    @hookimpl
    def pparallel_listeners(self, member: Any) -> list[Callable[[Event], object]]:
        message = f"no room for {member.name}"
        raise LookupError(message)


def test_plugins_listen(caplog: pytest.LogCaptureFixture) -> None:
    plugin = Listening()
    with pparallel.build(registry=Registry(Failing(), plugin)) as rt:
        rt.report(n=1)
    kinds = ["member.started", "report", "member.ended"]
    assert plugin.seen == [("member-0", kind) for kind in kinds]
    assert "Plugin Failing cannot listen" in caplog.text
    assert "no room for member-0" in caplog.text


def test_a_plugin_that_cannot_listen_is_fatal_if_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PPARALLEL_STRICT_PLUGINS", "1")
    with pytest.raises(ConfigError, match="Failing cannot listen: LookupError"):
        pparallel.build(registry=Registry(Failing()))
