"""Connections: messages that are whole, descriptors, deadlines, and ends that are errors."""

from __future__ import annotations

import errno
import math
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from pparallel.errors import ClosedError, ResourceExhaustedError
from pparallel.runtime.connection import LIMIT, Connection
from pparallel.runtime.memory import Arena, Payload

NOW = -math.inf
LONG = 60.0

Pair = tuple[Connection, Connection]


@pytest.fixture(name="pair")
def _pair() -> Iterator[Pair]:
    pair = Connection.pair()
    yield pair
    for each in pair:
        each.close()


@pytest.fixture(name="arena")
def _arena(pair: Pair) -> Iterator[Arena]:
    """Have large messages of the first end travel by an arena."""
    arena = Arena.create("test", 16 << 20)
    attached = Arena.attach(arena.fd)
    pair[0].payload, pair[1].payload = Payload([arena], 0), Payload([attached], 0)
    yield arena
    attached.close()
    arena.close()


def soon() -> float:
    return time.monotonic() + LONG


def fill(connection: Connection, message: Any = b"x" * 10_000) -> int:
    """Send until there is no room; return how many messages were sent."""
    for count in range(1 << 20):
        try:
            connection.send(message, deadline=NOW)
        except TimeoutError:
            return count
    raise AssertionError("there is always room")


def test_messages_arrive_whole_and_in_order(pair: Pair) -> None:
    one, two = pair
    sent: list[Any] = [None, 5, b"", "text", (1, [2, {"three": 4.0}]), b"x" * 50_000]
    for each in sent:
        one.send(each)
    assert [two.receive() for _ in sent] == [(each, []) for each in sent]
    two.send("back")
    assert one.receive() == ("back", [])


def test_descriptors_come_with_their_message(pair: Pair) -> None:
    one, two = pair
    reading, writing = os.pipe()
    one.send("before")
    one.send("with", [reading, writing])
    one.send("after")
    os.close(reading)
    os.close(writing)
    assert two.receive() == ("before", [])
    message, fds = two.receive()
    assert message == "with"
    os.write(fds[1], b"through")
    assert os.read(fds[0], 9) == b"through"
    assert not any(os.get_inheritable(each) for each in fds)
    for each in fds:
        os.close(each)
    assert two.receive() == ("after", [])


def test_large_messages_travel_by_the_arena(pair: Pair, arena: Arena) -> None:
    one, two = pair
    message = list(range(100_000))
    reading, writing = os.pipe()
    one.send(message, [reading])
    os.close(reading)
    assert arena.usage().blocks == 1
    found, fds = two.receive()
    assert found == message
    assert arena.usage().blocks == 0
    os.close(writing)
    assert os.read(fds[0], 1) == b""
    os.close(fds[0])


def test_a_large_message_that_cannot_leave_leaves_nothing(pair: Pair, arena: Arena) -> None:
    one, two = pair
    two.close()
    with pytest.raises(EOFError):
        one.send(b"x" * (1 << 20))
    assert arena.usage().blocks == 0


def test_without_room_in_the_arena_nothing_is_sent(pair: Pair, arena: Arena) -> None:
    one, two = pair
    with pytest.raises(ResourceExhaustedError, match="its budget"):
        one.send(b"x" * (17 << 20))
    one.send("next")
    assert two.receive() == ("next", [])


def test_what_is_too_long_or_not_plain_is_refused(pair: Pair) -> None:
    one, two = pair
    for refused in (b"x" * LIMIT, object(), [lambda: 5]):
        with pytest.raises(ValueError, match=r"longer than|unmarshallable"):
            one.send(refused)
    one.send("next")
    assert two.receive() == ("next", [])


def test_deadlines(pair: Pair) -> None:
    one, two = pair
    for deadline in (NOW, time.monotonic() - 1, time.monotonic() + 0.01):
        with pytest.raises(TimeoutError, match="no message in time"):
            two.receive(deadline=deadline)
    count = fill(one)
    with pytest.raises(TimeoutError, match="no room for a message in time"):
        one.send(b"x" * 10_000, deadline=time.monotonic() + 0.01)
    for _ in range(count):
        two.receive(deadline=NOW)
    with pytest.raises(TimeoutError):
        two.receive(deadline=NOW)
    one.send("room again", deadline=NOW)
    assert two.receive(deadline=soon(), spin=0.001) == ("room again", [])


def test_a_sender_waits_for_room(pair: Pair) -> None:
    one, two = pair
    count = fill(one)
    sender = threading.Thread(target=one.send, args=("last",), kwargs={"deadline": soon()})
    sender.start()
    found = [two.receive(deadline=soon())[0] for _ in range(count + 1)]
    sender.join()
    assert found[-1] == "last"


@pytest.mark.parametrize("spin", [0.0, 0.01])
@pytest.mark.parametrize("limited", [True, False])
def test_a_receiver_waits_for_a_message(pair: Pair, spin: float, limited: bool) -> None:
    one, two = pair
    found: list[Any] = []
    deadline = soon() if limited else None
    receiver = threading.Thread(
        target=lambda: found.append(two.receive(deadline=deadline, spin=spin))
    )
    receiver.start()
    one.send("late")
    receiver.join(LONG)
    assert found == [("late", [])]


def test_after_the_end_what_was_sent_is_received_and_then_an_error(pair: Pair) -> None:
    one, two = pair
    two.send("never read")  # so that the system resets the connection
    for each in range(3):
        one.send(each)
    one.close()
    assert [two.receive()[0] for _ in range(3)] == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(EOFError, match="the other end of the connection is closed"):
            two.receive(deadline=soon())
        with pytest.raises(EOFError, match="the other end of the connection is closed"):
            two.send("no more")


def test_a_closed_end_refuses(pair: Pair) -> None:
    one, _ = pair
    one.close()
    one.close()
    assert one.fileno() == -1
    with pytest.raises(ClosedError, match="the connection is closed"):
        one.send("more")
    with pytest.raises(ClosedError, match="the connection is closed"):
        one.receive()
    one.shut_down()


@pytest.mark.parametrize("by", [0, 1])
def test_shutting_down_wakes_who_waits(pair: Pair, by: int) -> None:
    one, two = pair
    ended = []

    def receive() -> None:
        with pytest.raises(EOFError):
            one.receive()
        ended.append("receive")

    def send() -> None:
        with pytest.raises(EOFError):
            one.send(b"x" * 10_000)
        ended.append("send")

    fill(one)
    threads = [threading.Thread(target=each) for each in (receive, send)]
    for each in threads:
        each.start()
    pair[by].shut_down()
    for each in threads:
        each.join(LONG)
    assert sorted(ended) == ["receive", "send"]
    two.shut_down()


@pytest.mark.parametrize(
    "garbage", [b"?", b"(\x02\x00\x00\x00i", b"\x00?", b"\x00i\x05\x00\x00\x00"]
)
def test_what_is_no_message_is_an_error(garbage: bytes) -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection = Connection(here)
    there.send(garbage)
    with pytest.raises(RuntimeError, match=r"no message|no payload"):
        connection.receive()
    there.send(b"N")
    assert connection.receive() == (None, [])
    there.close()
    connection.close()


def test_an_interrupted_wait_loses_nothing(pair: Pair) -> None:
    one, two = pair

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for deadline in (None, soon()):
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(KeyboardInterrupt):
                two.receive(deadline=deadline)
    finally:
        signal.signal(signal.SIGALRM, before)
    one.send("whole")
    assert two.receive() == ("whole", [])


def test_descriptors_that_are_lost_are_an_error(pair: Pair) -> None:
    one, two = pair
    one.send("with", [0, 1])
    one.send("after")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = len(os.listdir("/proc/self/fd")) - 1
    held = [os.dup(0) for _ in range(3)]
    highest = max(*held, taken) + 1
    held += [os.dup(0) for _ in range(highest - len(os.listdir("/proc/self/fd")) + 1)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(held) + 1, limits[1]))
    try:
        with pytest.raises(ResourceExhaustedError) as caught:
            two.receive()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for each in held:
            os.close(each)
    assert caught.value.errno == errno.EMFILE
    assert two.receive() == ("after", [])


AS_NOBODY = """
import math, os, resource
from pparallel.errors import ResourceExhaustedError
from pparallel.runtime.connection import Connection
here, there = Connection.pair()
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
if os.geteuid() == 0:
    os.setuid(65534)  # root may have any number on their way
sent = 0
try:
    while sent < 1000:
        here.send(sent, [0] * 20, deadline=-math.inf)
        sent += 1
except (ResourceExhaustedError, TimeoutError) as error:
    print(type(error).__name__, getattr(error, "resource", ""))
for number in range(sent):
    message, fds = there.receive()
    assert (message, len(fds)) == (number, 20)
    for each in fds:
        os.close(each)
here.send("on", [0])
print(there.receive()[0])
"""


class TestAsNobody:
    """A process of a user without rights, with 64 descriptors."""

    def test_too_many_descriptors_on_their_way_are_an_error(self) -> None:
        done = subprocess.run(
            [sys.executable, "-c", AS_NOBODY], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.split("\n") == ["ResourceExhaustedError file descriptors", "on", ""]
