"""Threads that receive what they wait for on `ipc`, in place of the hub."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import pytest
from ipc_peer import echo, pair

from pparallel.errors import ClosedError, PeerLostError
from pparallel.interfaces.transport import Frames
from pparallel.testing.patience import PATIENCE, until
from pparallel.testing.threads import in_threads
from pparallel_ipc.line import _LENT, Line
from pparallel_ipc.transport import IpcTransport


def soon(sender: str, frames: Frames) -> Frames:
    """Give the frames back, but not before the caller waits."""
    time.sleep(0.001)
    return frames


def answered(of: IpcTransport, *frames: bytes, to: str = "b") -> list[bytes]:
    """Ask, and wait for the answer as the layer above does."""
    future = of.request(to, frames, PATIENCE)
    with of.awaiting(to, future.done, PATIENCE):
        return [bytes(each) for each in future.result(PATIENCE)]


def received_by(of: IpcTransport) -> str:
    """Return the name of the thread that receives an answer for which this one waits."""
    names: list[str] = []
    future = of.request("b", [b"?"], PATIENCE)
    future.add_done_callback(lambda _: names.append(threading.current_thread().name))
    with of.awaiting("b", future.done, PATIENCE):
        future.result(PATIENCE)
    until(lambda: bool(names), "nobody was told")
    return names[0]


def test_a_thread_that_waits_alone_receives() -> None:
    with pair(soon) as (a, _):
        me = threading.current_thread().name
        until(lambda: received_by(a) == me, "somebody else receives")


def test_a_wait_ends_when_the_answer_is_there() -> None:
    with pair(echo) as (a, _):
        took: list[float] = []
        for n in range(100):
            began = time.monotonic()
            assert answered(a, b"%d" % n) == [b"%d" % n]
            took.append(time.monotonic() - began)
        assert statistics.median(took) < _LENT / 2


def test_what_comes_when_nobody_waits_any_more_is_received() -> None:
    with pair(soon) as (a, b):
        for n in range(20):
            assert answered(a, b"%d" % n) == [b"%d" % n]
            later = [a.request(b.name, [b"later"], PATIENCE) for _ in range(3)]
            assert answered(a, b"and this") == [b"and this"]
            until(lambda later=later: all(each.done() for each in later), "it was left lying")  # type: ignore[misc]


def test_several_threads_wait(scale: Callable[[int], int]) -> None:
    with pair(echo) as (a, _):

        def ask(thread: int) -> None:
            for n in range(scale(1000)):
                assert answered(a, b"%d %d" % (thread, n)) == [b"%d %d" % (thread, n)]
                if n % 50 == thread:
                    time.sleep(0.002)  # the others go on without it

        in_threads(4, ask)


def test_one_that_waits_for_long_leaves_it_to_the_hub() -> None:
    go = threading.Event()

    def handle(sender: str, frames: Frames) -> Frames:
        if bytes(frames[0]) == b"long":
            assert go.wait(PATIENCE)
        return frames

    with pair(handle) as (a, _):

        def ask(thread: int) -> list[bytes]:
            if thread == 0:
                return answered(a, b"long")
            until(
                lambda: "b" in a._lines and bool(a._lines["b"]._waiters), "the other does not wait"
            )
            time.sleep(0.02)
            found = answered(a, b"short")
            go.set()
            return found

        assert in_threads(2, ask) == [[b"long"], [b"short"]]


def test_a_time_out_is_kept() -> None:
    with pair(lambda _, __: Future()) as (a, b):
        future = a.request(b.name, [b"never"], PATIENCE)
        for timeout in (0.0, 0.001, 0.02):
            began = time.monotonic()
            with a.awaiting(b.name, future.done, timeout), pytest.raises(TimeoutError):
                future.result(timeout)
            assert time.monotonic() - began >= timeout


def test_an_interrupt_of_who_receives_loses_no_answer() -> None:
    with pair(soon) as (a, b):

        def interrupt(_: Future[Any]) -> None:
            if threading.current_thread() is threading.main_thread():
                raise KeyboardInterrupt

        def is_interrupted() -> bool:
            futures = [a.request(b.name, [b"%d" % n], PATIENCE) for n in range(5)]
            futures[1].add_done_callback(interrupt)
            try:
                with a.awaiting(b.name, futures[4].done, PATIENCE):
                    futures[4].result(PATIENCE)
            except KeyboardInterrupt:
                return True
            finally:
                found = [bytes(each.result(PATIENCE)[0]) for each in futures]
                assert found == [b"%d" % n for n in range(5)]
            return False

        until(is_interrupted, "this thread does not receive")
        assert a._lines["b"]._waiters == []
        assert answered(a, b"after") == [b"after"]


def test_the_other_ends_meanwhile() -> None:
    with pair(lambda _, __: Future()) as (a, b):
        future = a.request(b.name, [b"never"], PATIENCE)

        def wait(thread: int) -> None:
            if thread == 0:
                with a.awaiting(b.name, future.done, PATIENCE), pytest.raises(PeerLostError):
                    future.result(PATIENCE)
            else:
                until(lambda: "b" in a._lines and bool(a._lines["b"]._waiters), "nobody waits")
                b.close()

        in_threads(2, wait)
        with pytest.raises(PeerLostError):
            a.call(b.name, [b"after"], PATIENCE)


def test_it_is_closed_meanwhile_by_another_or_by_who_receives() -> None:
    for who in range(2):
        with pair(soon) as (a, b):
            futures = [a.request(b.name, [b"0"], PATIENCE)]
            if who == 0:
                futures[0].add_done_callback(lambda _, a=a: a.close())  # type: ignore[misc]
            else:
                threading.Thread(target=a.close).start()
            with suppress(ClosedError), a.awaiting(b.name, futures[0].done, PATIENCE):
                futures[0].result(PATIENCE)
            with pytest.raises(ClosedError):
                a.call(b.name, [b"after"], PATIENCE)
            until(lambda a=a: a._station is None, "it was not closed")  # type: ignore[misc]


def test_there_is_nothing_to_receive_from_this_member_or_an_unknown_one() -> None:
    with pair(echo) as (a, _):
        assert answered(a, b"me", to="a") == [b"me"]
        with a.awaiting("nobody", lambda: False, PATIENCE):
            pass


def test_the_hub_lets_somebody_finish_who_reads() -> None:
    with pair(echo) as (a, b):
        a.request(b.name, [b"first"], PATIENCE).result(PATIENCE)
        connection = a._lines["b"]._connection
        assert connection is not None
        futures: list[Future[Frames]] = []

        def read() -> None:
            futures.append(a.request(b.name, [b"second"], PATIENCE))
            until(lambda: connection.sock.fileno() in connection.hub._lent, "it is not left alone")
            assert not futures[0].done()

        until(lambda: connection._turn.take(read), "somebody reads all the time")
        (future,) = futures
        assert bytes(future.result(PATIENCE)[0]) == b"second"
        until(lambda: not connection.hub._lent, "the hub does not look again")


def test_only_one_reads(monkeypatch: pytest.MonkeyPatch, scale: Callable[[int], int]) -> None:
    reading: list[int] = []
    once = Line.take

    def take(self: Line, entries: list[Any], fds: list[int]) -> None:
        reading.append(1)
        assert len(reading) == 1
        once(self, entries, fds)
        reading.pop()

    monkeypatch.setattr(Line, "take", take)
    with pair(echo) as (a, _):

        def ask(thread: int) -> None:
            for n in range(scale(2000)):
                assert answered(a, b"%d" % n) == [b"%d" % n]

        in_threads(3, ask)


def test_an_answer_that_is_none_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: Line, entries: list[Any], fds: list[int]) -> None:
        raise LookupError(entries)

    with pair(soon) as (a, b):
        assert answered(a, b"first") == [b"first"]
        with monkeypatch.context() as changed:
            changed.setattr(Line, "take", fail)
            future = a.request(b.name, [b"?"], None)
            with suppress(LookupError), a.awaiting(b.name, future.done, PATIENCE):
                pass  # where this thread has received it, it cannot tell whose error that is
            with pytest.raises(PeerLostError, match="cannot be served: LookupError"):
                future.result(PATIENCE)
        assert "A connection could not be served" in caplog.text
