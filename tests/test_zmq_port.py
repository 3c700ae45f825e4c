"""What a socket is asked, and what it tells the thread that receives."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import zmq

from pparallel_zmq.port import BATCH, SELDOM, Port
from pparallel_zmq.sockets import Socket
from pparallel_zmq.wire import Kind, say

PART = say(Kind.REQUEST, b"x")


class Ends:
    """A port, and a socket that sends to it.

    Attributes:
        told: what the reader is told, since it was looked at last.
    """

    def __init__(self, context: zmq.Context[Any]) -> None:
        own: Socket = context.socket(zmq.DEALER, Socket)
        own.bind("inproc://port")
        self.peer: zmq.Socket[bytes] = context.socket(zmq.DEALER)
        self.peer.connect("inproc://port")
        self.told: list[bool] = []
        reader = SimpleNamespace(
            is_draining=lambda _: False, tell=lambda _, is_there: self.told.append(is_there)
        )
        self.port = Port(own, cast("Any", reader), cast("Any", None), 1)

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


def test_who_sends_tells_whether_something_has_come(ends: Ends) -> None:
    ends.port.put(PART)
    assert ends.told == [False]
    ends.send(1)
    ends.port.put(PART)
    ends.port.send(PART)
    assert ends.told == [False, True, True]
    assert len(ends.port.take(True)) == 1
    ends.port.put(PART)
    assert ends.told.pop() is False


def test_nothing_is_told_while_something_waits_for_room(ends: Ends) -> None:
    ends.port.hold()
    ends.port.put(PART)
    ends.port.flush()
    assert list(ends.port.backlog) == [(b"", [PART])]
    assert ends.told == [], "to be drained is what would send it"
    ends.send(1)
    ends.port.put(PART)
    assert ends.told == [True]
    ends.port.release()
    assert not ends.port.backlog
    assert [ends.peer.recv() for _ in range(2)] == [PART, PART]


def test_nothing_is_received_where_nothing_is(ends: Ends) -> None:
    for signalled in (True, False):
        assert ends.port.take(signalled) == []


def test_messages_that_come_alone_and_many_at_once(ends: Ends) -> None:
    for _ in range(3 * SELDOM):
        ends.send(1)
        assert len(ends.port.take(True)) == 1
        assert ends.port.take(False) == []
    ends.send(4 * SELDOM)
    counts = []
    while found := ends.port.take(False):
        counts.append(len(found))
    assert sum(counts) == 4 * SELDOM
    assert max(counts[SELDOM:]) == BATCH, "it looks for others again, soon enough"
