"""Calls from signal handlers and finalizers, at any point of another call."""

from __future__ import annotations

import faulthandler
import gc
import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import FrameType

import pytest
from zmq_meetings import meeting
from zmq_peer import opened, peers, transport

from pparallel.interfaces.transport import Frames
from pparallel.testing.patience import until
from pparallel_zmq.transport import ZmqTransport

NAMES = ["m0", "m1"]


@contextmanager
def member() -> Iterator[ZmqTransport]:
    with meeting(NAMES) as met, peers(NAMES[1:], NAMES, met) as (one,):
        own = transport("m0", NAMES, met, liveness_bound=5.0)
        with opened(own):
            assert one.opened() == "open"
            yield own


@contextmanager
def every_three_milliseconds(act: Callable[[], object]) -> Iterator[None]:
    until = time.monotonic() + 8  # whoever waits anew at each signal returns then

    def handler(_: int, __: FrameType | None) -> None:
        if time.monotonic() > until:
            signal.setitimer(signal.ITIMER_REAL, 0)
        act()

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def ends(act: Callable[[], None], seconds: float) -> None:
    """Run *act* here; a thread ends the process with all stacks if it does not return."""
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        act()
    finally:
        faulthandler.cancel_dump_traceback_later()


def test_signal_handlers_that_send_while_the_main_thread_sends_never_block_it() -> None:
    with member() as own:
        sent: list[Future[Frames]] = []
        large = bytes(200_000)

        def work() -> None:
            with every_three_milliseconds(lambda: sent.append(own.request("m1", [b"here", large]))):
                until = time.monotonic() + 1.5
                while time.monotonic() < until:
                    batch = [own.request("m1", [b"here", b"%d" % n]) for n in range(200)]
                    batch.append(own.request("m1", [b"here", large]))
                    for each in batch:
                        each.result(10)
            for each in sent:
                assert len(memoryview(each.result(10)[2])) == len(large)

        ends(work, 30)
        assert sent


def test_who_leaves_in_the_main_thread_says_so_first() -> None:
    with meeting(NAMES) as met, peers(NAMES[1:], NAMES, met) as (one,):
        own = transport("m0", NAMES, met, liveness_bound=5.0)
        with opened(own):
            assert one.opened() == "open"
            network = own._network
            assert network is not None
            until(lambda: "m1" in network._routes, "its hello has not come")
        until(lambda: one.lost() == [["m0", "has left"]], "it takes this member for lost")


class Sends:
    """Sends a request when it is collected as garbage."""

    def __init__(self, own: ZmqTransport, sent: list[Future[Frames]]) -> None:
        self.own, self.sent, self.me = own, sent, self

    def __del__(self) -> None:
        self.sent.append(self.own.request("m1", [b"here", b"late"]))


@pytest.mark.timeout(60)
def test_finalizers_that_send_in_any_thread_never_block_it() -> None:
    before = gc.get_threshold()
    with member() as own:
        sent: list[Future[Frames]] = []
        gc.set_threshold(5, 2, 2)  # collects within nearly every operation
        try:
            for _ in range(20):
                batch = []
                for n in range(50):
                    Sends(own, sent)
                    batch.append(own.request("m1", [b"here", b"%d" % n]))
                for each in batch:
                    each.result(10)
        finally:
            gc.set_threshold(*before)
        for each in sent.copy():
            assert bytes(memoryview(each.result(10)[2])) == b"late"
        assert len(sent) > 500


def test_time_out_is_kept_under_signals() -> None:
    with member() as own:
        own.call("m1", [b"here"], 5)
        for call in (own.call, lambda *args: own.request(*args).result()):
            began = time.monotonic()
            with every_three_milliseconds(lambda: None), pytest.raises(TimeoutError):
                call("m1", [b"never"], 0.5)
            assert time.monotonic() - began < 2


@contextmanager
def garbage_in_new_threads(make: Callable[[], object], every: int) -> Iterator[None]:
    """Have threads that are started inside collect garbage at every so many steps."""
    steps, is_over = itertools.count(1), False

    def collect(_: FrameType, __: str, ___: object) -> None:
        if not is_over and next(steps) % every == 0:
            make()
            gc.collect(0)

    threading.setprofile(collect)
    try:
        yield
    finally:
        is_over = True
        threading.setprofile(None)


@pytest.mark.timeout(60)
def test_finalizers_that_send_where_replies_are_received_never_block_it() -> None:
    sent: list[Future[Frames]] = []
    opened_ones: list[ZmqTransport] = []

    def make() -> None:
        if opened_ones and len(sent) < 500:
            Sends(opened_ones[0], sent)

    with garbage_in_new_threads(make, every=3), member() as own:
        own.call("m1", [b"here"], 5)
        opened_ones.append(own)
        while len(sent) < 500:
            for each in [own.request("m1", [b"here", b"%d" % n]) for n in range(20)]:
                each.result(10)
        opened_ones.clear()
        for each in sent.copy():
            assert bytes(memoryview(each.result(10)[2])) == b"late"
