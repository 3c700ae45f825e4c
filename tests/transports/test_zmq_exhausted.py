"""Members on ZeroMQ that send more than there is room for, or lack descriptors."""

from __future__ import annotations

import errno
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import zmq
from typing_extensions import override
from zmq_meetings import PLACES, meeting
from zmq_peer import handle, opened, peers, transport

from pparallel.errors import RemoteError, ResourceExhaustedError
from pparallel.interfaces.transport import Frames
from pparallel.runtime.links import ProcessId
from pparallel.testing.patience import until
from pparallel_zmq import sockets, wire
from pparallel_zmq.memory import Memory
from pparallel_zmq.streams import Incoming
from pparallel_zmq.transport import ZmqTransport

NAMES = ["m0", "m1"]
LIMITS = wire.Limits(2**16, 8 * 2**30, 2 * 2**20)


Handling = Callable[[Frames], Frames | Future[Frames]]


@contextmanager
def pair(**options: object) -> Iterator[tuple[ZmqTransport, ZmqTransport]]:
    """Open two members in this process; the second answers with what the first frame names."""
    with meeting(NAMES) as met:
        one, two = (transport(name, NAMES, met, liveness_bound=5.0, **options) for name in NAMES)

        def handler(sender: str, frames: Frames) -> Frames | Future[Frames]:
            return ANSWERS[bytes(frames[0]).decode()](frames)

        opens = threading.Thread(target=two.open, args=(handler,))
        opens.start()
        try:
            with opened(one, handler):
                opens.join(10)
                yield one, two
        finally:
            opens.join(10)
            two.close()


class Unwritable(list[bytes]):
    """Frames whose encoding runs out of memory."""

    @override
    def __len__(self) -> int:
        raise MemoryError("no memory for the reply")


def _deferred(frames: Frames) -> Future[Frames]:
    found: Future[Frames] = Future()
    threading.Thread(target=found.set_result, args=(frames,)).start()
    return found


def _cancelled(_: Frames) -> Future[Frames]:
    found: Future[Frames] = Future()
    found.cancel()
    return found


ANSWERS: dict[str, Handling] = {
    "echo": lambda frames: frames,
    "unwritable": lambda _: Unwritable(),
    "unwritable later": lambda _: _deferred(Unwritable()),
    "no buffer": lambda _: [object()],  # type: ignore[list-item]
    "no buffer later": lambda _: _deferred([object()]),  # type: ignore[list-item]
    "cancelled": _cancelled,
}


def test_reply_that_cannot_be_encoded_is_an_error_of_the_caller() -> None:
    with pair() as (one, _):
        for what in [each for each in ANSWERS if each != "echo"] * 2:
            with pytest.raises(RemoteError):
                one.call("m1", [what.encode()], 5)
        assert one.call("m1", [b"echo"], 5)


def test_announced_frames_cost_nothing_until_their_bytes_arrive() -> None:
    me, memory = psutil.Process(), Memory()
    before = me.memory_info().rss
    table = [(2**20 - 2) << 1] * 250 + [64 * 2**20 << 1] * 4
    kept = [Incoming(table, memory) for _ in range(4)]
    for each in kept:
        assert not each.feed(memoryview(b"x"))
    assert me.memory_info().rss - before < 20 * 2**20


def test_memory_that_comes_back_after_the_end_is_given_back_at_once() -> None:
    memory = Memory()
    lent = [memory.take(2**20) for _ in range(3)]
    memory.close()
    last = lent.pop()  # which keeps what it was taken from
    lent.clear()
    assert not memory._free
    assert len(memoryview(last)) == 2**20


def test_large_message_of_frames_of_all_sizes_arrives_as_it_was_sent() -> None:
    sizes = [0, 1, 2**16, 0, 2**20 - 1, 2**20, 3 * 2**20 + 5, 7, 0]
    frames = [os.urandom(size) for size in sizes]
    with pair() as (one, _):
        found = one.call("m1", [b"echo", *frames], 20)
        assert [bytes(each) for each in found[1:]] == frames


def test_sender_that_announces_more_than_one_message_may_hold_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pair(max_message=2**22, allow_insecure=True) as (one, two):
        network = two._network
        assert network is not None
        table = struct.pack("<Q", 2**21 << 1)
        server = network._server
        for number in range(3):  # what one member says that sends no pieces
            head = wire.HEAD.pack(wire.Kind.REQUEST, wire.LARGE, 0, 1, 2**40 + number)
            server._receive((b"nobody", "m0", head + table, None))
        assert "larger than transport.max_message" in caplog.text
        server.forget("m0")
        assert one.call("m1", [b"echo", bytes(2**21)], 10)


def test_link_that_cannot_be_made_is_an_error_and_the_next_call_makes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ["m0", "m1", "m2"]
    with meeting(names) as met, peers(["m0", "m2"], names, met) as others:
        own = transport("m1", names, met, liveness_bound=5.0)
        with opened(own):
            assert [each.opened() for each in others] == ["open", "open"]
            before = psutil.Process().num_fds()
            eventfd, monitor = os.eventfd, sockets.Sockets._monitor

            def no_eventfd(*_: object) -> int:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

            def no_monitor(*_: object) -> object:
                raise zmq.ZMQError(errno.EMFILE)

            for target, name, failing, real in (
                (os, "eventfd", no_eventfd, eventfd),
                (sockets.Sockets, "_monitor", no_monitor, monitor),
            ):
                monkeypatch.setattr(target, name, failing)
                with pytest.raises(OSError, match="file descriptors"):
                    own.call("m2", [b"here"], 5)
                monkeypatch.setattr(target, name, real)
            until(lambda: psutil.Process().num_fds() <= before, "sockets are left")
            assert own.call("m2", [b"here"], 5)


def test_call_to_a_member_that_takes_nothing_keeps_its_time_out() -> None:
    options = {"high_water_mark": 4, "window": 64, "piece_size": 2**16, "liveness_bound": 20.0}
    with meeting(NAMES) as met, peers(NAMES[1:], NAMES, met) as (other,):
        own = transport("m0", NAMES, met, **options)

        def request(to: str, frames: Frames, timeout: float) -> Frames:
            return own.request(to, frames, timeout).result()

        calls: list[Callable[[str, Frames, float], Frames]] = [own.call, request]
        with opened(own):
            assert other.opened() == "open"
            own.call("m1", [b"here"], 5)
            os.kill(other.pid, signal.SIGSTOP)
            try:
                began = time.monotonic()
                for call in calls:
                    for _ in range(2):
                        with pytest.raises(TimeoutError):
                            call("m1", [b"here", bytes(8 * 2**20)], 0.3)
                assert time.monotonic() - began < 10
            finally:
                os.kill(other.pid, signal.SIGCONT)


def test_opening_that_fails_once_there_are_sockets_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing() -> ProcessId:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with meeting(NAMES, PLACES[1]) as met:
        own = transport("m0", NAMES, met)
        before = psutil.Process().num_fds()
        monkeypatch.setattr(ProcessId, "here", failing)
        with pytest.raises(ResourceExhaustedError, match="file descriptors"):
            own.open(handle)
        own.close()
        assert "pparallel-zap" not in [each.name for each in threading.enumerate()]
        assert psutil.Process().num_fds() == before


def test_members_that_lack_descriptors_fail_to_open_and_do_not_end_the_process() -> None:
    code = """
import os, resource, sys, threading
from zmq_meetings import meeting
from zmq_peer import handle, transport
from pparallel.errors import CallTimeoutError, ResourceExhaustedError

NAMES = ["m0", "m1"]


def open_one(own, ends):
    try:
        own.open(handle)
        ends.append("open")
    except ResourceExhaustedError as error:
        assert "ulimit -n" in str(error), error
        ends.append("exhausted")
    except CallTimeoutError:  # the other one lacks them
        ends.append("alone")


with meeting(NAMES, sys.argv[1]) as met:
    resource.setrlimit(resource.RLIMIT_NOFILE, (120, 120))
    held = []
    try:
        while True:
            held.append(os.dup(0))
    except OSError:
        pass
    free = 0
    for left in (0, 4, 8, 20, 30, 47):
        while free < left:
            os.close(held.pop())
            free += 1
        both = [transport(name, NAMES, met, rendezvous_timeout=0.2) for name in NAMES]
        ends = []
        threads = [threading.Thread(target=open_one, args=(own, ends)) for own in both]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        for own in both:
            own.close()
        assert len(ends) == 2, ends
        assert left > 8 or ends == ["exhausted"] * 2, ends
    assert len(os.listdir("/proc/self/fd")) <= 120 - left + 1
"""
    command = [sys.executable, "-W", "error", "-c", code, PLACES[0]]
    assert (
        subprocess.run(command, cwd=Path(__file__).parents[1] / "helpers", check=False).returncode
        == 0
    )


def test_large_call_where_no_descriptor_is_left_works() -> None:
    code = """
import os, resource, threading
from zmq_meetings import meeting
from zmq_peer import handle, transport

NAMES = ["m0", "m1"]
with meeting(NAMES) as met:
    one, two = (transport(name, NAMES, met, liveness_bound=5.0) for name in NAMES)
    opens = threading.Thread(target=two.open, args=(handle,))
    opens.start()
    one.open(handle)
    opens.join()
    for _ in range(2):
        one.call("m1", [b"here"], 5)
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
    held = []
    try:
        while True:
            held.append(os.dup(0))
    except OSError:
        pass
    for size in (2**20, 1, 2**20, 1):
        assert len(one.call("m1", [bytes(size)], 5)[1]) == size
    for each in held:
        os.close(each)
    for each in (one, two):
        each.close()
"""
    command = [sys.executable, "-W", "error", "-c", code]
    assert (
        subprocess.run(command, cwd=Path(__file__).parents[1] / "helpers", check=False).returncode
        == 0
    )
