"""Time-outs that are kept, and members that go on, whatever fails or is full meanwhile."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from typing_extensions import override

from pparallel.errors import CallTimeoutError, PparallelError, SerializationError
from pparallel.interfaces.launcher import LauncherConfig
from pparallel.interfaces.transport import Frames, TransportConfig
from pparallel.runtime.rpc import RpcGroup, context
from pparallel.testing.patience import PATIENCE, until
from pparallel.testing.suite import changed
from pparallel.testing.transport.alone import AloneTests, Open, copied
from pparallel.testing.transport.called import (
    add,
    add_late,
    give_back,
    note,
    noted,
    open_gate,
    wait_at_gate,
)

if TYPE_CHECKING:
    from pparallel.builder import Runtime

SOON = 2.0  #: seconds beyond a time-out within which it must have been kept, on a busy computer


class Unsendable:
    """Raises when it is serialised, or where it arrives."""

    def __init__(self, arrives: bool) -> None:
        self.arrives = arrives

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        if self.arrives:
            return _refuse, ()
        raise LookupError("it cannot be sent")


def _refuse() -> None:
    raise LookupError("it cannot be rebuilt")


def _answer_unless_empty(sender: str, frames: Frames) -> Frames | Future[Frames]:
    return frames if bytes(frames[0]) else Future()


def make_unsendable(arrives: bool) -> Unsendable:
    return Unsendable(arrives)


def leave() -> None:
    raise SystemExit(3)


def bounce(to: str, depth: int, payload: bytes) -> int:
    """Call back and forth between this member and *to*, with a payload."""
    if depth == 0:
        return 0
    endpoint = context.endpoint()
    group = RpcGroup(endpoint, "world", endpoint.member.names)
    count: int = group.rpc_sync(to, bounce, args=(endpoint.name, depth - 1, payload))
    return count + 1


def hold(seconds: float) -> None:
    """Keep a handler thread."""
    threading.Event().wait(seconds)


def _raises_in_time(call: Callable[[], object], timeout: float) -> None:
    began = time.monotonic()
    with pytest.raises(CallTimeoutError):
        call()
    took = time.monotonic() - began
    assert took < timeout + SOON, f"a time-out of {timeout} s was kept after {took:.1f} s"


def under_back_pressure(rt: Runtime) -> None:
    group = rt.group()
    if rt.rank == 0:
        large = bytes(60_000)
        waiting = group.rpc_async(1, wait_at_gate, timeout=PATIENCE)
        stuck = group.rpc_async(1, _held, (large,), timeout=PATIENCE)
        _raises_in_time(lambda: group.rpc_sync(1, give_back, (large,), timeout=0.3), 0.3)
        _raises_in_time(lambda: group.rpc_async(1, give_back, (large,), timeout=0.3).wait(), 0.3)
        _raises_in_time(lambda: group.rpc_sync(1, wait_at_gate, timeout=0.3), 0.3)
        assert group.rpc_sync(2, add, timeout=PATIENCE, args=(1, 2)) == 3, "another member waits"
        group.rpc_sync(1, open_gate)
        waiting.wait()
        assert stuck.wait() == len(large)
        assert len(group.rpc_sync(1, give_back, args=(large,))) == len(large)
    group.barrier(PATIENCE)


def _held(value: bytes) -> int:
    wait_at_gate()
    return len(value)


def beside_a_slow_one(rt: Runtime) -> None:
    group = rt.group()
    if rt.rank == 0:
        large = bytes(60_000)
        stuck = [group.rpc_async(1, _held, (large,), timeout=PATIENCE) for _ in "1"]
        threads = [threading.Thread(target=group.rpc_async, args=(1, _held, (large,)))]
        for each in threads:
            each.start()
        for _ in range(20):
            assert len(group.rpc_sync(2, give_back, (large,), timeout=PATIENCE)) == len(large)
            assert len(group.rpc_async(2, give_back, (large,), timeout=PATIENCE).wait()) == len(
                large
            )
        group.rpc_sync(1, open_gate)
        for future in stuck:
            future.wait()
        for each in threads:
            each.join()
    group.barrier(PATIENCE)


def in_queues(rt: Runtime) -> None:
    group = rt.group()
    group.barrier(PATIENCE)
    if rt.rank == 0:
        held = group.rpc_async(1, hold, (1.0,), timeout=PATIENCE)
        queued = [group.rpc_async(1, note, (number,), timeout=0.2) for number in range(5)]
        for each in queued:
            _raises_in_time(each.wait, 0.2)
        held.wait()
        assert group.rpc_sync(1, noted) == [], "calls ran whose time-outs had passed"
    group.barrier(PATIENCE)


def errors_of_all_kinds(rt: Runtime) -> None:
    group = rt.group()
    if rt.rank == 0:
        calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
            (give_back, (Unsendable(False),)),
            (give_back, (Unsendable(True),)),
            (make_unsendable, (False,)),
            (make_unsendable, (True,)),
            (leave, ()),
        ]
        for function, args in calls:
            for call in (group.rpc_sync, lambda *a, **k: group.rpc_async(*a, **k).wait()):
                with pytest.raises((PparallelError, SystemExit)) as caught:
                    call(1, function, timeout=PATIENCE, args=args)
                assert not isinstance(caught.value, CallTimeoutError), f"{function} hangs"
                assert group.rpc_sync(1, add, timeout=PATIENCE, args=(1, 2)) == 3
        with pytest.raises(SerializationError):
            group.remote(1, make_unsendable, args=(False,)).to_here(PATIENCE)
    group.barrier(PATIENCE)


def callbacks_that_fail(rt: Runtime) -> None:
    group = rt.group()
    if rt.rank == 0:
        found: list[int] = []

        def calls(_: object) -> None:
            found.append(group.rpc_sync(1, add_late, timeout=PATIENCE, args=(1, 2)))

        def leaves(_: object) -> None:
            raise SystemExit(3)

        for callback in (leaves, calls):
            future = group.rpc_async(1, add_late, timeout=PATIENCE, args=(3, 4))
            future.add_done_callback(callback)
            assert future.wait() == 7
        until(lambda: found == [3], "a callback that calls did not end")
        assert group.rpc_sync(1, add, timeout=PATIENCE, args=(1, 2)) == 3
    group.barrier(PATIENCE)


def circles(rt: Runtime, size: int) -> None:
    group = rt.group()
    if rt.rank == 0:
        assert group.rpc_sync(1, bounce, args=(rt.name, 4, bytes(size)), timeout=PATIENCE) == 4
    group.barrier(PATIENCE)


@contextmanager
def signals(period: float) -> Iterator[None]:
    """Interrupt the main thread by a signal again and again."""
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals come to the main thread alone")
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    main, ended = threading.get_ident(), threading.Event()

    def interrupt() -> None:
        while not ended.wait(period):
            signal.pthread_kill(main, signal.SIGUSR1)

    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        signal.signal(signal.SIGUSR1, before)


class LawTests(AloneTests):
    """Tests of what holds while something fails, is full, or interrupts."""

    def test_a_timeout_is_kept_under_signals(self, open_transport: Open) -> None:
        link = open_transport(_answer_unless_empty)
        for _ in range(3):  # what is quick for a caller that calls again is tried too
            assert copied(self._ask(link, [b"x"]))[0] == b"x"
        with signals(0.05):
            _raises_in_time(lambda: self._ask(link, [b""], 0.4), 0.4)

    def test_one_slow_member_holds_up_no_other(
        self, config: TransportConfig, launcher: LauncherConfig
    ) -> None:
        narrow = changed(config, max_in_flight=100_000)
        assert self.launch(launcher, narrow, 3, beside_a_slow_one) == [None] * 3

    def test_a_timeout_is_kept_under_back_pressure(
        self, config: TransportConfig, launcher: LauncherConfig
    ) -> None:
        narrow = changed(config, max_in_flight=100_000, handler_threads=4)
        assert self.launch(launcher, narrow, 3, under_back_pressure) == [None] * 3

    def test_a_timeout_is_kept_in_queues(
        self, config: TransportConfig, launcher: LauncherConfig
    ) -> None:
        narrow = changed(config, handler_threads=1)
        assert self.launch(launcher, narrow, 2, in_queues) == [None] * 2

    def test_nobody_is_deaf_after_an_error(
        self, config: TransportConfig, launcher: LauncherConfig
    ) -> None:
        assert self.launch(launcher, config, 2, errors_of_all_kinds) == [None] * 2

    def test_nobody_is_deaf_after_a_callback(
        self, config: TransportConfig, launcher: LauncherConfig
    ) -> None:
        assert self.launch(launcher, config, 2, callbacks_that_fail) == [None] * 2

    @pytest.mark.parametrize(("threads", "size"), [(1, 60_000), (1, 300_000), (4, 60_000)])
    def test_circles_do_not_deadlock(
        self, config: TransportConfig, launcher: LauncherConfig, threads: int, size: int
    ) -> None:
        narrow = changed(config, handler_threads=threads, max_in_flight=100_000)
        assert self.launch(launcher, narrow, 2, circles, size) == [None] * 2
