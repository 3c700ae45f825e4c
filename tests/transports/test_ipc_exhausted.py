"""What runs out on `ipc`: the call fails, and nobody is deaf or taken for lost afterwards."""

from __future__ import annotations

import errno
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, NoReturn

import psutil
import pytest
from exhausted import no_descriptors
from ipc_peer import echo, pair
from typing_extensions import override

from pparallel.errors import (
    CallTimeoutError,
    ClosedError,
    PeerLostError,
    PparallelError,
    RemoteError,
    ResourceExhaustedError,
)
from pparallel.interfaces.transport import Frames
from pparallel.runtime.links import ProcessId
from pparallel.runtime.memory import Arena
from pparallel.testing.patience import PATIENCE, until
from pparallel.testing.threads import in_threads
from pparallel_ipc import IpcTransportConfig
from pparallel_ipc.hub import Hub
from pparallel_ipc.line import Line
from pparallel_ipc.station import Station


def fail_once(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, error: BaseException, times: int = 1
) -> Callable[[], bool]:
    """Have the next calls of a function of this backend fail; return what says whether they did."""
    original, left = getattr(owner, name), list(range(times))

    def call(*args: Any, **kwargs: Any) -> Any:
        caller = sys._getframe(1).f_code.co_filename
        if ("pparallel_ipc" in caller or "event_fd" in caller) and left:
            left.pop()
            raise error
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, call)
    return lambda: not left


def copied(frames: Frames) -> list[bytes]:
    return [bytes(each) for each in frames]


@pytest.mark.parametrize("lane", [False, True])
def test_many_small_buffers_arrive(lane: bool) -> None:
    with pair(echo) as (a, b):
        frames: list[Any] = [b"x"] * 20_000 + [bytearray(b"y")] * 20_000
        for sent in (frames, [b"x"] * 7000, [bytearray(b"x")] * 5000):
            if lane:
                assert copied(a.call(b.name, sent, PATIENCE)) == copied(sent)
            else:
                futures = [a.request(b.name, sent, PATIENCE) for _ in range(2)]
                assert [copied(each.result(PATIENCE)) for each in futures] == [copied(sent)] * 2


def test_a_call_fails_that_finds_no_descriptor_to_connect_and_the_member_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pair(echo) as (a, b):
        none = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        for n in range(3):  # a member connects when it first calls
            has_failed = fail_once(monkeypatch, socket, "socket", none)
            with pytest.raises(ResourceExhaustedError, match="the connection to member 'b'"):
                (a.call if n % 2 else a.request)(b.name, [b"none"], PATIENCE)
            assert has_failed()
            monkeypatch.undo()
        assert a.members() == ["a", "b"]
        assert copied(a.request(b.name, [b"first"], PATIENCE).result(PATIENCE)) == [b"first"]
        assert copied(a.call(b.name, [b"second"], PATIENCE)) == [b"second"]


@pytest.mark.parametrize("lane", [False, True])
def test_a_member_that_was_called_without_descriptors_is_reached_later(lane: bool) -> None:
    with pair(echo) as (a, b):
        with no_descriptors(), suppress(OSError, PparallelError):
            if lane:
                a.call(b.name, [b"none"], 0.5)
            else:
                a.request(b.name, [b"none"], 0.5).result(PATIENCE)
        assert a.members() == ["a", "b"]
        assert copied(a.request(b.name, [b"first"], PATIENCE).result(PATIENCE)) == [b"first"]
        assert copied(a.call(b.name, [b"second"], PATIENCE)) == [b"second"]


def test_what_is_no_arena_is_closed_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fail_once(monkeypatch, Arena, "attach", ValueError("this is no arena"), 2)
    with pytest.raises(PeerLostError, match="this is no arena"), pair(echo):
        raise AssertionError("they have met")
    assert "Bad file descriptor" not in caplog.text  # it may be another's by then


def test_the_end_of_a_connection_is_told_of_without_a_descriptor_to_look_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = threading.Event()

    def wait(_: str, frames: Frames) -> Frames:
        gate.wait(PATIENCE)
        return frames

    with pair(wait) as (a, b):
        none = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        has_failed = fail_once(monkeypatch, ProcessId, "ends_within", none)
        asked = b.request(a.name, [b"never"], None)
        assert b._station is not None
        for connection in list(b._station._connections):
            if connection.calling:
                connection.sock.shutdown(socket.SHUT_RDWR)
        with pytest.raises(PeerLostError):
            asked.result(PATIENCE)
        assert has_failed()
        gate.set()


def test_who_finds_no_room_for_shared_memory_for_long_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = psutil.Process().num_fds()
    none = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    has_failed = fail_once(monkeypatch, Arena, "attach", none, 100_000)
    config = IpcTransportConfig(liveness_bound=0.5, rendezvous_timeout=10 * PATIENCE)
    with pytest.raises(PeerLostError, match="Too many open files"), pair(echo, config):
        raise AssertionError("they have met")
    assert not has_failed()
    assert psutil.Process().num_fds() == before


def test_a_member_without_descriptors_lets_others_in_later_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pair(echo) as (a, b):
        none = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        has_failed = fail_once(monkeypatch, socket.socket, "accept", none, 3)
        assert copied(a.request(b.name, [b"first"], PATIENCE).result(PATIENCE)) == [b"first"]
        assert has_failed()
    assert caplog.text.count("cannot let members in") == 1


def test_a_hub_that_cannot_be_made_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    before = psutil.Process().num_fds()
    with monkeypatch.context() as changed:
        none = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        fail_once(changed, os, "eventfd", none)
        with pytest.raises(OSError, match="Too many open files"):
            Hub("a")
    assert psutil.Process().num_fds() == before


@pytest.mark.parametrize("has_lanes", [False, True])
def test_a_time_out_begins_when_the_call_does(
    monkeypatch: pytest.MonkeyPatch, has_lanes: bool
) -> None:
    line, late = Station.line, [0.0]

    def slowly(self: Station, name: str) -> Line:
        late[0] = 1000.0
        made = line(self, name)
        if has_lanes:
            until(lambda: not made._post._waits, "it is not connected")
        return made

    with pair(lambda _, __: Future()) as (a, b):
        monkeypatch.setattr(Station, "line", slowly)
        clock = SimpleNamespace(monotonic=lambda: time.monotonic() + late[0])
        monkeypatch.setattr("pparallel_ipc.transport.time", clock)
        with pytest.raises(CallTimeoutError, match=r"1000\.1"):
            a.call(b.name, [b"never"], 1000.1)


def test_who_leaves_while_it_connects_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with pair(echo) as (a, b):
        connect = socket.socket.connect

        def leave(sock: socket.socket, address: Any) -> None:
            connect(sock, address)
            if threading.current_thread() is threading.main_thread():
                in_threads(1, lambda _: a.close())

        monkeypatch.setattr(socket.socket, "connect", leave)
        with pytest.raises(ClosedError):
            a.request(b.name, [b"never"], PATIENCE).result(PATIENCE)
        monkeypatch.undo()


class Unreadable(list[bytes]):
    """Frames that the system cannot read when they are to be sent."""

    @override
    def __len__(self) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    @override
    def __iter__(self) -> NoReturn:
        raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("lane", [False, True])
def test_a_reply_that_cannot_be_sent_is_an_error_of_the_caller_and_logged(
    caplog: pytest.LogCaptureFixture, lane: bool
) -> None:
    def reply(_: str, frames: Frames) -> Frames:
        return Unreadable([b"x"]) if bytes(frames[0]) == b"unreadable" else frames

    with pair(reply) as (a, b):
        for _ in range(2):
            a.call(b.name, [b"first"], PATIENCE)

        def ask(*args: Any) -> Frames:
            return a.call(*args) if lane else a.request(*args).result(PATIENCE)

        with pytest.raises(RemoteError, match=os.strerror(errno.EIO)):
            ask(b.name, [b"unreadable"], PATIENCE)
        assert os.strerror(errno.EIO) in caplog.text
        assert copied(a.call(b.name, [b"after"], PATIENCE)) == [b"after"]
