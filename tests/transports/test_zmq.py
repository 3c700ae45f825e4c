"""The transport ``zmq``: the suite, and what its sockets leave."""

from __future__ import annotations

import socket
import weakref
from pathlib import Path
from typing import Any

import pytest
from member_pairs import ask, pair
from reduced_transport_suite import ReducedTransportSuite
from typing_extensions import override

from pparallel.interfaces.transport import Frames, TransportConfig
from pparallel.testing import TransportSuite
from pparallel.testing.patience import until
from pparallel_zmq import ZmqTransportConfig, sockets


class TestOnTcp(TransportSuite):
    @pytest.fixture
    @override
    def config(self) -> TransportConfig:
        return ZmqTransportConfig(address="tcp://127.0.0.1:0")


class TestOnUnixSockets(ReducedTransportSuite):
    @pytest.fixture
    @override
    def config(self) -> TransportConfig:
        return ZmqTransportConfig(address="ipc")


def test_what_was_received_is_let_go_of() -> None:
    received: list[weakref.ref[Any]] = []

    def answer(frames: Frames) -> Frames:
        received.append(weakref.ref(memoryview(frames[-1]).obj))
        return [b"%d" % memoryview(frames[-1]).nbytes]

    with pair(ZmqTransportConfig()) as there:
        ask(there, b"first")
        there.at_b.answer = answer
        assert ask(there, bytearray(3 * 2**20)) == [b"3145728"]
        there.a.send("b", [b"", bytearray(3 * 2**20)])
        there.at_b.has(1)
        received.append(weakref.ref(memoryview(there.at_b.messages[0][1][1]).obj))
        there.at_b.messages.clear()
        until(lambda: [each() for each in received] == [None] * 2, "what was handled is held")


def test_no_socket_file_is_left_and_one_of_a_killed_process_is_no_hindrance(
    tmp_path: Path,
) -> None:
    for stale in ("meet", "meet.1"):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(str(tmp_path / stale))
    with pair(ZmqTransportConfig(address=f"ipc://{tmp_path}/meet")) as there:
        assert ask(there, b"?") == [b"?"]
        names = {each.name for each in tmp_path.iterdir()}
        assert {"meet", "meet.1"} < names  # and that of a direct connection
    assert list(tmp_path.iterdir()) == []


def test_a_socket_file_that_another_process_has_bound_since_is_left(tmp_path: Path) -> None:
    path, other = tmp_path / "meet", tmp_path / "other"
    path.touch()
    other.touch()
    mine = sockets._File(str(path), path.stat().st_ino)
    other.rename(path)
    mine.remove()
    assert path.exists()
    for _ in range(2):
        sockets._File(str(path), path.stat().st_ino if path.exists() else 0).remove()
    assert not path.exists()
