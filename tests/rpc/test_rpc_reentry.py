"""Signal handlers and finalizers that come between any two steps of counts, places and futures."""

from __future__ import annotations

import collections
import gc
import heapq
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from interruption import MOST, Interruption, at_each_moment
from rpc_members import between, launch
from typing_extensions import override

from pparallel import Runtime
from pparallel.errors import CallTimeoutError
from pparallel.interfaces.transport import Frames
from pparallel.runtime import clock as clocks
from pparallel.runtime import delivery, lean_future
from pparallel.runtime.clock import Clock
from pparallel.runtime.lean_future import LeanFuture
from pparallel.runtime.pending import Pending
from pparallel.runtime.rpc import Reply, Request, RpcGroup, current, directory, refs
from pparallel.runtime.rpc.window import Room, Window
from pparallel.testing.patience import PATIENCE, until


class Endpoint:
    """Serves, and calls nobody."""

    name = "m0"

    def __init__(self) -> None:
        self.services: dict[str, Callable[[Request], Any]] = {}

    def serve(self, key: str, service: Callable[[Request], Any]) -> None:
        self.services[key] = service

    def ask(self, sender: str, key: str, body: object) -> Any:
        return self.services[key](Request(sender, body, []))


@pytest.mark.parametrize("second", ["m1", "m2"])
def test_holds_that_are_claimed_in_a_signal_handler_are_counted(second: str) -> None:
    def make() -> Any:
        endpoint: Any = Endpoint()
        table = refs.RefTable(endpoint)

        def claim(by: str) -> None:
            endpoint.ask(by, refs.CLAIM, ("value", None, True))

        def verdict(number: int) -> None:
            endpoint.ask("m1", refs.RELEASE, [("value", 1)])
            assert len(table) == 1, f"interrupted at {number}"
            endpoint.ask(second, refs.RELEASE, [("value", 1)])
            assert len(table) == 0, f"interrupted at {number}"

        return lambda: claim("m1"), lambda: claim(second), verdict

    at_each_moment(make, refs, collections)


def test_a_value_that_is_claimed_as_its_last_hold_goes_is_kept() -> None:
    def make() -> Any:
        endpoint: Any = Endpoint()
        table = refs.RefTable(endpoint)
        endpoint.ask("m1", refs.CLAIM, ("value", None, True))
        claim = lambda: endpoint.ask("m2", refs.CLAIM, ("value", None, True))  # noqa: E731
        release = lambda: endpoint.ask("m1", refs.RELEASE, [("value", 1)])  # noqa: E731

        def verdict(number: int) -> None:
            assert len(table) == 1, f"interrupted at {number}"

        return release, claim, verdict

    at_each_moment(make, refs)


def test_members_that_meet_in_a_signal_handler_are_answered() -> None:
    def make() -> Any:
        endpoint: Any = Endpoint()
        directory.Directory(endpoint)
        replies: list[Future[Reply]] = []

        def meet(member: str) -> None:
            body = ("g", "key"), ["m1", "m2"], True, f"{member}:1"
            replies.append(endpoint.ask(member, directory.MEET, body))

        def verdict(number: int) -> None:
            assert all(each.done() for each in replies), f"interrupted at {number}"
            assert len(replies) == 2

        return lambda: meet("m1"), lambda: meet("m2"), verdict

    at_each_moment(make, directory)


def test_a_place_that_is_taken_while_another_is_withdrawn_counts() -> None:
    def make() -> Any:
        endpoint: Any = Endpoint()
        directory.Directory(endpoint)

        def meet(member: str, number: int) -> Future[Reply]:
            body = ("g", "key"), ["m1", "m2"], True, f"{member}:{number}"
            found: Future[Reply] = endpoint.ask(member, directory.MEET, body)
            return found

        meet("m1", 1)
        withdrawn = ("g", "key"), "m1:1"

        def verdict(number: int) -> None:
            assert meet("m2", 1).done(), f"interrupted at {number}"

        return (
            lambda: endpoint.ask("m1", directory.WITHDRAW, withdrawn),
            lambda: meet("m1", 2),
            verdict,
        )

    at_each_moment(make, directory)


def test_room_that_is_taken_in_a_signal_handler_is_counted() -> None:
    from pparallel.runtime.rpc import window as windows

    def make() -> Any:
        window = Window(10_000, lambda: False)
        taken: list[int] = []

        def take() -> None:
            room = Room("a")
            window.take(room, 1000, None)
            taken.append(room.size)

        def verdict(number: int) -> None:
            assert window._used["a"] == sum(taken), f"interrupted at {number}"
            assert len(taken) == 2

        return take, take, verdict

    at_each_moment(make, windows, collections)


def test_time_outs_are_kept_after_a_request_that_was_interrupted_anywhere() -> None:
    from pparallel.runtime import pending as pendings

    class InterruptedError(Exception):
        pass

    def interrupt() -> None:
        raise InterruptedError

    later: list[tuple[Pending[None], Future[None]]] = []
    for number in range(1, MOST):
        pending: Pending[None] = Pending("the test")
        at = Interruption(number, interrupt, pendings, clocks)
        try:
            with at.armed():
                pending.add("a", 0.02)
        except InterruptedError:
            later.append((pending, pending.add("a", 0.05)))
        else:
            pending.close()
            break
    assert len(later) > 10
    for pending, future in later:
        with pytest.raises(CallTimeoutError):
            future.result(PATIENCE)
        pending.close()


def test_a_time_out_that_could_not_be_told_is_told_later(monkeypatch: pytest.MonkeyPatch) -> None:
    pending: Pending[None] = Pending("the test")
    errors: list[Exception] = [MemoryError()]

    def fail(future: Future[Any], error: BaseException) -> None:
        if errors:
            raise errors.pop()
        future.set_exception(error)

    monkeypatch.setattr("pparallel.runtime.pending.fail", fail)
    with pytest.raises(CallTimeoutError):
        pending.add("a", 0.01).result(PATIENCE)
    assert not errors
    pending.close()


def test_a_reply_at_the_last_moment_is_returned() -> None:
    from pparallel.runtime.pending import awaited

    class Late(LeanFuture[int]):
        @override
        def _wait(self, timeout: float | None) -> None:
            try:
                super()._wait(0)
            finally:
                if not self.done():
                    self.set_result(3)

    assert awaited(Late(), "a", 0.01) == 3


def test_no_finalizer_runs_while_the_lock_of_all_futures_is_held() -> None:
    owned: list[bool] = []
    lock: Any = lean_future.bare

    def look(phase: str, _: object) -> None:
        owned.append(lock._is_owned())

    before = gc.get_threshold()
    gc.callbacks.append(look)
    gc.set_threshold(1)
    try:
        for _ in range(100):
            future: LeanFuture[int] = LeanFuture()
            assert future._condition is future._condition
            future.set_result(1)
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(look)
    assert owned
    assert not any(owned)


def test_a_clock_whose_new_thread_runs_a_finalizer_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, called = Clock("test-clock"), threading.Event()
    began: Any = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]
    is_first = iter([True])

    def bootstrap(thread: threading.Thread) -> None:
        if thread.name == "test-clock" and next(is_first, False):
            clock.after(0, called.set)
        began(thread)

    monkeypatch.setattr(threading.Thread, "_bootstrap_inner", bootstrap)
    starting = threading.Thread(target=clock.start, daemon=True)
    starting.start()
    assert called.wait(PATIENCE)
    starting.join()
    clock.close()


def test_a_clock_without_memory_for_a_moment_calls_later(monkeypatch: pytest.MonkeyPatch) -> None:
    push = heapq.heappush
    errors: list[Exception] = [MemoryError()]

    def fail(heap: list[Any], item: Any) -> None:
        if errors:
            raise errors.pop()
        push(heap, item)

    monkeypatch.setattr(heapq, "heappush", fail)
    clock, called = Clock("test-clock"), threading.Event()
    clock.after(0, called.set)
    assert called.wait(PATIENCE)
    assert not errors
    clock.close()


def test_a_reply_that_cannot_be_copied_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    reply: Future[Frames] = Future()
    own, asked = delivery.own, []

    def fail(frames: Frames) -> Any:
        asked.append(frames)
        if len(asked) > 1:
            raise MemoryError
        return own(frames)

    monkeypatch.setattr(delivery, "own", fail)
    future: LeanFuture[Frames] = LeanFuture()
    delivery.Delivery("a", lambda *_: reply).deliver("b", [b"request"], future)
    reply.set_result([b"reply"])
    until(future.done, "it has not ended")
    with pytest.raises(Exception, match="MemoryError"):
        future.result()


def test_a_reference_whose_owner_has_no_memory_for_an_answer_fails() -> None:
    def program(rt: Runtime, group: RpcGroup) -> None:
        assert group.rpc_sync(1, without_memory) is None
        with pytest.raises(MemoryError):
            group.remote(1, len, args=("abc",)).to_here(PATIENCE)
        assert group.remote(1, len, args=("abc",)).to_here(PATIENCE) == 3

    launch(between(program))


def without_memory() -> None:
    """Have this member not write the next None."""
    endpoint: Any = current.endpoint()
    serializer = endpoint.serializer
    dumps = serializer.dumps

    def fail(value: object) -> Any:
        if value is None:
            del serializer.dumps
            raise MemoryError
        return dumps(value)

    serializer.dumps = fail


def test_a_group_within_another_shares_no_service_with_one_of_that_name() -> None:
    def program(rt: Runtime, _: RpcGroup) -> None:
        first = rt.group("a", [rt.name])
        second = rt.group("a/b", [rt.name])
        first.serve("b/c", lambda _: Reply("first"))
        second.serve("c", lambda _: Reply("second"))
        assert first.ask(rt.name, "b/c").body == "first"
        assert second.ask(rt.name, "c").body == "second"

    launch(between(program))
