"""What a socket is asked, and what it tells the thread that receives."""

from __future__ import annotations

from collections.abc import Iterator
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
