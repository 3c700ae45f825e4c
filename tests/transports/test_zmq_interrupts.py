"""Calls on ZeroMQ that are interrupted, anywhere: nothing is lost, and the next one works."""

from __future__ import annotations

import gc
import itertools
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import psutil
import pytest
import zmq.sugar
from zmq_meetings import meeting
from zmq_peer import opened, peers, transport

import pparallel_zmq
from pparallel.testing.patience import until
from pparallel_zmq.transport import ZmqTransport

NAMES = ("m0", "m1", "m2")
PLACES = (*pparallel_zmq.__path__, *zmq.sugar.__path__)
SLACK = 12  #: descriptors of what an interrupt has lost last, and that libzmq is about to close

# What interrupts a finalizer is told of by CPython, and goes nowhere.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Interrupt(BaseException):
    """Raised by a signal's handler."""


@pytest.fixture
def own() -> Iterator[ZmqTransport]:
    """Open a member that is not the first: it connects to the third with its first request."""
    with meeting(NAMES) as met, peers(["m0", "m2"], NAMES, met) as others:
        found = transport("m1", NAMES, met, liveness_bound=5.0)
        with opened(found):
            assert [each.opened() for each in others] == ["open", "open"]
            yield found


@contextmanager
def interrupted_at(point: int) -> Iterator[None]:
    """Interrupt this thread at the N-th point where CPython looks for signals in the transport.

    It does at the beginning of a function, and after a call of one that is written in C.
    """
    left = point

    def profile(frame: FrameType, event: str, _: object) -> None:
        nonlocal left
        if event in ("call", "c_return") and frame.f_code.co_filename.startswith(PLACES):
            left -= 1
            if left == 0:
                raise Interrupt

    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)


def interrupt_everywhere(own: ZmqTransport, act: Callable[[], object]) -> int:
    """Interrupt *act* at each of its points; return how many there are."""
    me = psutil.Process()
    before = me.num_fds()
    for point in itertools.count(1):
        try:
            with interrupted_at(point):
                act()
        except Interrupt:
            assert own.call("m2", [b"here"], 5), f"interrupted at point {point}"
        else:
            break
    gc.collect()  # links that were given up
    until(lambda: me.num_fds() <= before + SLACK, "descriptors are lost")
    return point


def without_lanes(own: ZmqTransport) -> None:
    network = own._network
    assert network is not None
    network.links["m2"]._close_idle()


def without_a_link(own: ZmqTransport) -> None:
    network = own._network
    assert network is not None
    link = network.links.get("m2")
    if link is not None:
        link.finish(keep=0.0)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("size", [1, 2**20])
@pytest.mark.parametrize("without", [None, without_lanes, without_a_link])
def test_call_that_is_interrupted_at_any_point_loses_nothing(
    own: ZmqTransport, size: int, without: Callable[[ZmqTransport], None] | None
) -> None:
    frames = [b"here", bytes(size)]
    own.call("m2", frames, 5)
    own.call("m2", frames, 5)

    def act() -> None:
        if without is not None:
            without(own)
        own.call("m2", frames, 5)

    assert interrupt_everywhere(own, act) > 20


@pytest.mark.timeout(120)
def test_large_request_that_is_interrupted_at_any_point_makes_nobody_deaf(
    own: ZmqTransport, caplog: pytest.LogCaptureFixture
) -> None:
    frames = [b"here", *[bytes(2**20) for _ in range(3)]]

    def request(frames: list[bytes]) -> None:
        assert own.request("m2", frames).result(5)

    request(frames)
    points = 0
    for points in itertools.count(1):
        try:
            with interrupted_at(points):
                request(frames)
        except Interrupt:
            request([b"here"])  # by the same connection, behind what was interrupted
            request(frames)
        else:
            break
    assert points > 20
    assert "dropped" not in caplog.text


@pytest.mark.timeout(60)
def test_calls_that_a_timer_interrupts_lose_nothing(own: ZmqTransport) -> None:
    me, interrupts = psutil.Process(), 0
    own.call("m2", [b"here"], 5)
    own.call("m2", [b"here"], 5)
    before = me.num_fds()

    def interrupt(*_: object) -> None:
        raise Interrupt

    former = signal.signal(signal.SIGALRM, interrupt)
    end = time.monotonic() + 4
    try:
        while time.monotonic() < end:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0005 + interrupts % 20 * 1e-4)
                for _ in range(100):  # one that interrupts a finalizer is not noticed
                    assert own.call("m2", [b"here"], 5)
            except Interrupt:
                interrupts += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
    assert interrupts > 500
    assert own.call("m2", [b"here"], 5)
    until(lambda: me.num_fds() <= before + SLACK, "descriptors are lost")


def test_closing_is_not_held_up_by_a_call_whose_interrupt_is_being_handled() -> None:
    with meeting(NAMES[:2]) as met, peers(["m0"], NAMES[:2], met) as (first,):
        own = transport("m1", NAMES[:2], met, liveness_bound=5.0)
        own.open(lambda _, frames: frames)
        assert first.opened() == "open"
        own.call("m0", [b"here"], 5)
        held = []
        for point in range(1, 60):
            try:
                with interrupted_at(point):
                    own.call("m0", [b"here"], 5)
            except Interrupt as error:
                held.append(error)  # with all that its frames refer to
        closing = threading.Thread(target=own.close, daemon=True)
        closing.start()
        closing.join(10)
        assert held
        assert not closing.is_alive(), "it waits for what nobody closes"
