"""What a socket is asked, and what it tells the thread that receives."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from threading import get_ident
from typing import Any, cast

import pytest
import zmq

from pparallel.testing.patience import until
from pparallel_zmq.port import BATCH, Port
from pparallel_zmq.sockets import Connection, Socket
from pparallel_zmq.wire import Kind, Limits, say

PART = say(Kind.REQUEST, b"x")
LIMITS = Limits(frames=100, size=2**20, piece=2**20, window=1)


class Ends:
    """A port, and a socket that sends to it.

    Attributes:
        woken: how often the reader was woken.
    """

    def __init__(self, context: zmq.Context[Any], most: int = 1000) -> None:
        connection = Connection()
        own = Socket(context, zmq.DEALER, connection.made)
        own.sndhwm = most
        own.bind("inproc://port")
        self.peer: zmq.Socket[bytes] = context.socket(zmq.DEALER)
        self.peer.rcvhwm = most
        self.peer.connect("inproc://port")
        self.woken = 0
        self.unsent: list[tuple[str, bytes, int, Exception]] = []
        self.port = Port(
            connection,
            cast("Any", self),
            cast("Any", None),
            LIMITS,
            lambda *unsent: self.unsent.append(unsent),
        )

    def wake(self, _: object) -> None:
        self.woken += 1

    def send(self, count: int) -> None:
        for _ in range(count):
            self.peer.send(PART)


@pytest.fixture
def ends() -> Iterator[Ends]:
    with zmq.Context() as context:
        found = Ends(context)
        yield found
        found.port.close()
        found.peer.close(0)


def test_who_sends_wakes_the_reader_if_something_has_come(ends: Ends) -> None:
    ends.port.send(PART)
    assert ends.woken == 0
    ends.send(1)
    ends.port.send(PART)
    assert ends.woken == 1
    assert len(ends.port.take(True)) == 1
    ends.port.send(PART)
    assert ends.woken == 1


def test_who_is_interrupted_while_it_sends_wakes_the_reader(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ends.port.take(False) == []  # the reader sleeps
    ends.send(1)

    def interrupt(*_: object, **__: object) -> None:
        until(lambda: bool(zmq.zmq_poll(ends.port._asked, 0)), "nothing has come")
        raise KeyboardInterrupt  # of a signal's handler, once the news was taken from the reader

    with monkeypatch.context() as changed:
        changed.setattr(ends.port, "_send_part", interrupt)
        with pytest.raises(KeyboardInterrupt):
            ends.port.send(PART)
    assert ends.woken == 1, "neither this message nor those after it are noticed"
    assert len(ends.port.take(True)) == 1


def test_what_is_behind_a_message_that_could_not_be_received_is_noticed(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends.send(5)
    receive, calls = ends.port._receive_part, count(1)

    def fail_second(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == 2:
            raise MemoryError
        return receive(*args, **kwargs)

    with monkeypatch.context() as changed:
        changed.setattr(ends.port, "_receive_part", fail_second)
        assert len(ends.port.take(False)) == 1
    assert ends.woken == 1, "neither these messages nor those after them are noticed"
    assert len(ends.port.take(False)) == 4


def test_what_is_held_leaves_in_order_when_it_is_released(ends: Ends) -> None:
    ends.port._held = True
    ends.port.send(PART)
    ends.port.send(say(Kind.HELLO), urgent=True)
    assert list(ends.port._backlog) == [(b"", [PART])]
    assert ends.woken == 0, "to be drained sends nothing yet"
    ends.port.release()
    assert not ends.port._backlog
    assert [ends.peer.recv() for _ in range(2)] == [say(Kind.HELLO), PART]


def test_room_that_a_sender_notices_wakes_the_reader() -> None:
    with zmq.Context() as context:
        ends = Ends(context, most=1)
        try:
            while not ends.port._backlog:
                ends.port.send(PART)
            ends.port.take(True)  # the reader has seen that there is no room
            before, ends.woken = len(ends.port._backlog), 0
            ends.peer.recv()

            def is_woken() -> bool:
                ends.port.send(PART)  # this takes the news from the reader
                return ends.woken > 0

            until(is_woken, "what waits is never sent")
            ends.port.take(True)
            assert len(ends.port._backlog) <= before + 1
        finally:
            ends.port.close()
            ends.peer.close(0)


@pytest.mark.parametrize("is_there", [True, False])
def test_nothing_is_received_where_nothing_is(ends: Ends, is_there: bool) -> None:
    assert ends.port.take(is_there) == []


def test_messages_are_received_in_batches_once_it_is_asked_for_more(ends: Ends) -> None:
    ends.send(2 * BATCH + 2)
    asked = (True, False, False, False, False)
    assert [len(ends.port.take(each)) for each in asked] == [1, BATCH, BATCH, 1, 0]


def test_message_that_is_interrupted_ends_before_the_next(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, calls = ends.port._send_part, count(1)

    def interrupt(*args: Any, **kwargs: Any) -> None:
        send(*args, **kwargs)
        if next(calls) == 1:
            raise KeyboardInterrupt  # of a signal's handler, between two parts

    with monkeypatch.context() as changed:
        changed.setattr(ends.port, "_send_part", interrupt)
        with pytest.raises(KeyboardInterrupt):
            ends.port._do(ends.port._try, b"", [b"piece", b"and its bytes"])
    ends.port.send(PART)
    assert ends.peer.recv_multipart() == [b"piece", b""]
    assert ends.peer.recv_multipart() == [PART]


def test_what_is_sent_inside_another_operation_is_left_and_leaves_before_what_follows(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [say(Kind.REQUEST, bytes([n])) for n in range(3)]
    send, calls = ends.port._send_part, count()

    def interrupted(*args: Any, **kwargs: Any) -> None:
        if next(calls) == 0:
            ends.port.send(parts[1])  # as a finalizer may
        send(*args, **kwargs)

    with monkeypatch.context() as changed:
        changed.setattr(ends.port, "_send_part", interrupted)
        ends.port.send(parts[0])
        assert ends.woken == 1
        ends.port.send(parts[2])
        assert len(ends.port._left) == 2
        ends.port.take(False)
    assert ends.port.is_empty
    assert [ends.peer.recv() for _ in parts] == parts


def test_a_large_message_that_was_left_and_finds_no_memory_is_told_of(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    with monkeypatch.context() as changed:
        changed.setattr(ends.port, "_send_part", fail)
        ends.port.send(PART, [b"large"], 7, thread=get_ident(), whose="me")
        assert ends.port.take(False) == []
    ((whose, route, number, error),) = ends.unsent
    assert (whose, route, number, type(error)) == ("me", b"", 7, MemoryError)
    ends.port.send(PART)
    assert ends.peer.recv() == PART
