"""Threads that wait for answers on `ipc`, and the hub, which receives them."""

from __future__ import annotations

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
from pparallel_ipc.line import Line
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


def test_a_time_out_is_kept() -> None:
    with pair(lambda _, __: Future()) as (a, b):
        future = a.request(b.name, [b"never"], PATIENCE)
        for timeout in (0.0, 0.001, 0.02):
            began = time.monotonic()
            with a.awaiting(b.name, future.done, timeout), pytest.raises(TimeoutError):
                future.result(timeout)
            assert time.monotonic() - began >= timeout


def test_the_other_ends_meanwhile() -> None:
    with pair(lambda _, __: Future()) as (a, b):
        future = a.request(b.name, [b"never"], PATIENCE)

        def wait(thread: int) -> None:
            if thread == 0:
                with a.awaiting(b.name, future.done, PATIENCE), pytest.raises(PeerLostError):
                    future.result(PATIENCE)
            else:
                time.sleep(0.01)  # the other waits, or will at once
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


def test_who_waits_on_the_thread_that_receives_gets_the_answer() -> None:
    with pair(soon) as (a, _):
        found: list[object] = []

        def wait_again(_: Future[Any]) -> None:
            found.append(answered(a, b"first"))
            found.append(answered(a, b"second"))
            future: Future[Frames] = Future()
            with a.awaiting("b", future.done, 0.01):
                found.append(future.done())

        for n in range(1, 11):
            futures = [a.request("b", [b"%d" % n], PATIENCE) for n in range(5)]
            futures[1].add_done_callback(wait_again)
            assert [bytes(each.result(PATIENCE)[0]) for each in futures] == [
                b"%d" % n for n in range(5)
            ]
            until(lambda n=n: len(found) == 3 * n, "it waits for ever")  # type: ignore[misc]
        assert found == [[b"first"], [b"second"], False] * 10


def test_there_is_nothing_to_receive_from_this_member_or_an_unknown_one() -> None:
    with pair(echo) as (a, _):
        assert answered(a, b"me", to="a") == [b"me"]
        with a.awaiting("nobody", lambda: False, PATIENCE):
            pass


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
