"""The protocol, whatever the network makes of it."""

from __future__ import annotations

import ast
import pickle
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pparallel_redis
from pparallel.errors import PeerLostError
from pparallel_redis.faults import RedisLostError, lost
from pparallel_redis.places import parsed
from pparallel_redis.wire import ProtocolError, ReplyError, Wire

Reply = Any

replies = st.recursive(
    st.none() | st.integers(-(2**62), 2**62) | st.binary(max_size=30),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)


def encoded(reply: Reply) -> bytes:
    """Return a reply as a server sends it."""
    if reply is None:
        return b"$-1\r\n"
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, bytes):
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    return b"*%d\r\n%b" % (len(reply), b"".join(map(encoded, reply)))


@contextmanager
def wired(serve: Callable[[socket.socket], object]) -> Iterator[Wire]:
    """Give a wire whose other end *serve* holds, in a thread."""
    ours, theirs = socket.socketpair()

    def run() -> None:
        with theirs:
            serve(theirs)

    thread = threading.Thread(target=run)
    thread.start()
    with closing(Wire(ours, 5)) as wire:
        try:
            yield wire
        finally:
            wire.wake()
            thread.join()


def send(stream: bytes, end: socket.socket) -> None:
    end.sendall(stream)


@settings(max_examples=30)
@given(st.lists(replies, min_size=1, max_size=4), st.integers(1, 50))
def test_replies_arrive_in_whatever_pieces(expected: list[Reply], size: int) -> None:
    stream = b"".join(map(encoded, expected))

    def serve(end: socket.socket) -> None:
        for at in range(0, len(stream), size):
            end.sendall(stream[at : at + size])

    with wired(serve) as wire:
        assert [wire.receive() for _ in expected] == expected


def test_large_replies_are_read_where_they_belong() -> None:
    every: list[tuple[int, ...]] = [(), (0,), (100,), (70_000, 0, 3), (1, 65_534, 65_535, 200_000)]
    for sizes in every:
        content = (bytes(range(251)) * (sum(sizes) // 251 + 1))[: sum(sizes)]
        stream = encoded(b"before") + encoded(content) + encoded(b"after")
        with wired(partial(send, stream)) as wire:
            views = [memoryview(bytearray(size)) for size in sizes]
            assert wire.receive() == b"before"
            assert wire.receive(into=views) is views
            assert b"".join(views) == content
            assert wire.receive() == b"after"


def test_what_is_sent_is_what_was_given() -> None:
    large = [memoryview(bytes([n]) * size) for n, size in enumerate((100_000, 0, 5, 20_000))]
    commands = [(b"SET", b"k", large, b"NX"), (b"PING",), (b"SET", b"", [])]
    sent = bytearray()

    def serve(end: socket.socket) -> None:
        while data := end.recv(4096):
            sent.extend(data)

    with wired(serve) as wire:
        wire.send(commands)
    expected = [
        [b"".join(each) if isinstance(each, list) else each for each in command]
        for command in commands
    ]
    assert bytes(sent) == b"".join(map(encoded, expected))


def test_what_is_no_redis_server() -> None:
    for stream in (
        b"HTTP/1.1 400 Bad Request\r\n",
        b"$x\r\n",
        b"$99999999999999\r\n",
        b"*1\r\n?\r\n",
        b"\r\n",
        b"+" + b"x" * 100_000,
    ):
        with wired(partial(send, stream)) as wire, pytest.raises(ProtocolError):
            wire.receive()


def test_a_connection_that_ends_in_the_middle() -> None:
    for stream in (b"", b"$5\r\nab", b"*2\r\n:1\r\n", b"$100000\r\nabc"):
        with wired(partial(send, stream)) as wire, pytest.raises(ConnectionResetError):
            wire.receive()


def test_errors_are_returned_and_have_codes() -> None:
    def serve(end: socket.socket) -> None:
        end.sendall(b"*2\r\n-OOM no\r\n:1\r\n-ERR x\r\n")
        end.recv(100)

    with wired(serve) as wire:
        inner, one = wire.receive()
        assert (inner.code, str(inner), one) == ("OOM", "OOM no", 1)
        with pytest.raises(ReplyError, match="ERR x"):
            wire.ask(b"PING")


def test_a_lost_server_can_be_sent_to_other_members() -> None:
    error = lost(parsed("redis://:pw@127.0.0.1:7"), 3, ConnectionRefusedError(111, "refused"))
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, RedisLostError)
    assert isinstance(again, PeerLostError)
    assert str(again) == str(error)
    assert again.peer == "127.0.0.1:7"


def test_only_what_plugins_may_import_is_imported() -> None:
    allowed = ("config", "interfaces", "errors", "lazy", "plugin", "machine", "runtime")
    for path in Path(pparallel_redis.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names += [f"{node.module}.{each.name}" for each in node.names]
            for name in names:
                package, _, rest = name.partition(".")
                assert not package.startswith("pparallel_") or package == "pparallel_redis", path
                assert package != "pparallel" or rest.startswith(allowed), path
