"""Threads that receive what they wait for on `ipc`, in place of the hub."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from contextlib import suppress

import pytest
from ipc_peer import echo, pair

from pparallel.errors import ClosedError, PeerLostError
from pparallel.interfaces.transport import Frames
from pparallel.testing.patience import PATIENCE, until
from pparallel.testing.threads import in_threads
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


def test_several_threads_wait() -> None:
    with pair(echo) as (a, _):

        def ask(thread: int) -> None:
            for n in range(100):
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
