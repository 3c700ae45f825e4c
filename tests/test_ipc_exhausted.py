"""What runs out once on `ipc`: the call is late or fails, and nobody is deaf afterwards."""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from ipc_peer import echo, pair

from pparallel.interfaces.transport import Frames
from pparallel.testing.patience import PATIENCE
from pparallel_ipc import messages
from pparallel_ipc.guest import Guest
from pparallel_ipc.line import Line


def fail_once(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, error: BaseException, times: int = 1
) -> Callable[[], bool]:
    """Have the next calls of a function of this backend fail; return what says whether they did."""
    original, left = getattr(owner, name), list(range(times))

    def call(*args: Any, **kwargs: Any) -> Any:
        if "pparallel_ipc" in sys._getframe(1).f_code.co_filename and left:
            left.pop()
            raise error
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, call)
    return lambda: not left


def copied(frames: Frames) -> list[bytes]:
    return [bytes(each) for each in frames]


EXHAUSTED = [errno.ENOBUFS, errno.ENOMEM, errno.EAGAIN]


@pytest.mark.parametrize("number", EXHAUSTED)
@pytest.mark.parametrize("times", [1, 3])
def test_a_request_is_late_when_the_system_has_no_room_to_send_it(
    monkeypatch: pytest.MonkeyPatch, number: int, times: int
) -> None:
    with pair(echo) as (a, b):
        a.request(b.name, [b"first"], PATIENCE).result(PATIENCE)
        has_failed = fail_once(
            monkeypatch, socket.socket, "send", OSError(number, os.strerror(number)), times
        )
        futures = [a.request(b.name, [b"%d" % n], PATIENCE) for n in range(5)]
        assert [copied(each.result(PATIENCE)) for each in futures] == [
            [b"%d" % n] for n in range(5)
        ]
        assert has_failed()


def test_a_request_is_late_when_there_is_no_memory_to_encode_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pair(echo) as (a, b):
        a.request(b.name, [b"first"], PATIENCE).result(PATIENCE)
        has_failed = fail_once(monkeypatch, messages, "dumps", MemoryError("for a test"))
        futures = [a.request(b.name, [b"%d" % n], PATIENCE) for n in range(5)]
        assert [copied(each.result(PATIENCE)) for each in futures] == [
            [b"%d" % n] for n in range(5)
        ]
        assert has_failed()


@pytest.mark.parametrize("lane", [False, True])
def test_many_small_buffers_arrive(lane: bool) -> None:
    with pair(echo) as (a, b):
        frames: list[Any] = [b"x"] * 20_000 + [bytearray(b"y")] * 20_000
        for sent in (frames, [b"x"] * 7000, [bytearray(b"x")] * 5000):
            future: Future[Frames] = Future()
            if lane:
                future.set_result(a.call(b.name, sent, PATIENCE))
            else:
                futures = [a.request(b.name, sent, PATIENCE) for _ in range(5)]
                future = futures[-1]
            assert copied(future.result(PATIENCE)) == copied(sent)


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOMEM, "none"), OSError(errno.ENOBUFS, "none"), MemoryError("none")]
)
@pytest.mark.parametrize("times", [1, 4])
def test_nobody_is_deaf_after_memory_to_receive_was_missing(
    monkeypatch: pytest.MonkeyPatch, error: Exception, times: int
) -> None:
    with pair(echo) as (a, b):
        a.request(b.name, [b"first"], PATIENCE).result(PATIENCE)
        has_failed = fail_once(monkeypatch, socket.socket, "recvmsg", error, times)
        futures = [a.request(b.name, [b"%d" % n], PATIENCE) for n in range(5)]
        assert [copied(each.result(PATIENCE)) for each in futures] == [
            [b"%d" % n] for n in range(5)
        ]
        assert has_failed()
        assert copied(a.call(b.name, [b"after"], PATIENCE)) == [b"after"]


@pytest.mark.parametrize(
    ("owner", "name"), [(messages, "loads"), (Guest, "take"), (Line, "answered")]
)
def test_nobody_is_deaf_after_memory_to_decode_was_missing(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    with pair(echo) as (a, b):
        a.request(b.name, [b"first"], PATIENCE).result(PATIENCE)
        has_failed = fail_once(monkeypatch, owner, name, MemoryError("for a test"))
        futures = [a.request(b.name, [b"%d" % n], PATIENCE) for n in range(5)]
        assert [copied(each.result(PATIENCE)) for each in futures] == [
            [b"%d" % n] for n in range(5)
        ]
        assert has_failed()
