"""Signals on `ipc`: their handlers may call and raise wherever the main thread is."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from ipc_peer import echo, pair

from pparallel.errors import CallTimeoutError
from pparallel.interfaces.transport import Frames
from pparallel.testing.patience import PATIENCE
from pparallel_ipc.transport import IpcTransport


@contextmanager
def alarms(handler: Any, every: float) -> Iterator[None]:
    """Have *handler* called every so many seconds inside, and never after that."""
    is_inside = False

    def handle(number: int, frame: FrameType | None) -> None:
        if is_inside:
            handler(number, frame)

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, every, every)
    try:
        is_inside = True
        yield
    finally:
        is_inside = False  # first: what the handler raises would leave the timer on
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def waited(of: IpcTransport, n: int) -> bytes:
    """Ask, and wait for the answer as the layer above does."""
    future = of.request("b", [b"%d" % n], PATIENCE)
    with of.awaiting("b", future.done, PATIENCE):
        return bytes(future.result(PATIENCE)[0])


def test_a_handler_that_asks_hangs_nobody() -> None:
    with pair(echo) as (a, b):
        asked: list[Future[Frames]] = []

        def ask(number: int, frame: FrameType | None) -> None:
            asked.append(a.request(b.name, [b"asked"], PATIENCE))

        until = time.monotonic() + 1
        with alarms(ask, 0.001):
            n = 0
            while time.monotonic() < until:
                n += 1
                assert waited(a, n) == b"%d" % n
                assert bytes(a.call(b.name, [b"%d" % n], PATIENCE)[0]) == b"%d" % n
        assert len(asked) > 3
        assert {bytes(each.result(PATIENCE)[0]) for each in asked} == {b"asked"}


class RaisedError(Exception):
    """Raised by a signal's handler."""


class LateError(RaisedError, TimeoutError):
    """One that looks like the system's."""


@pytest.fixture
def finalizers_are_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a finalizer be where a handler raises: no test can keep that from happening."""
    hook = sys.unraisablehook

    def report(unraisable: Any) -> None:
        if not issubclass(unraisable.exc_type, RaisedError):
            hook(unraisable)

    monkeypatch.setattr(sys, "unraisablehook", report)


@pytest.mark.parametrize("error", [RaisedError, LateError])
@pytest.mark.usefixtures("finalizers_are_interrupted")
def test_a_handler_that_raises_loses_no_answer(error: type[Exception]) -> None:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise error

    with pair(echo) as (a, b):
        times, until = 0, time.monotonic() + 2
        while time.monotonic() < until:
            futures = [a.request(b.name, [b"%d" % n], PATIENCE) for n in range(6)]
            try:
                with alarms(interrupt, 0.0004 + times % 7 * 0.0001):
                    for each in futures:
                        with a.awaiting(b.name, each.done, PATIENCE):
                            each.result(PATIENCE)
                    time.sleep(0.001)
            except RaisedError:
                times += 1
            found = [bytes(each.result(5)[0]) for each in futures]
            assert found == [b"%d" % n for n in range(6)]
        assert times > 10


def test_a_time_out_of_a_call_is_kept_under_signals() -> None:
    held: list[Future[Frames]] = []

    def hold(sender: str, frames: Frames) -> Future[Frames]:
        held.append(Future())
        return held[-1]

    with pair(lambda s, f: hold(s, f) if bytes(f[0]) == b"hold" else f) as (a, b):
        a.call(b.name, [b"first"], PATIENCE)
        a.call(b.name, [b"second"], PATIENCE)
        with alarms(lambda *_: None, 0.1):
            began = time.monotonic()
            with pytest.raises(CallTimeoutError):
                a.call(b.name, [b"hold"], 0.5)
            assert time.monotonic() - began < 2.0


def test_a_handler_that_waits_for_an_answer_gets_it_wherever_it_interrupts() -> None:
    late: list[object] = []
    calls = 0
    is_inside = False

    with pair(echo) as (a, b):

        def call(number: int, frame: FrameType | None) -> None:
            nonlocal calls, is_inside
            if is_inside:
                return
            is_inside = True
            calls += 1
            asked = calls
            if waited(a, asked) != b"%d" % asked:
                late.append(asked)
            is_inside = False

        a.request(b.name, [b"first"], PATIENCE).result(PATIENCE)
        until = time.monotonic() + 2
        with alarms(call, 0.0011):
            while time.monotonic() < until:
                futures = [
                    a.request(b.name, [b"%d" % n] * (n % 3 * 15 + 1), PATIENCE) for n in range(20)
                ]
                for n, each in enumerate(futures):
                    with a.awaiting(b.name, each.done, PATIENCE):
                        assert bytes(each.result(PATIENCE)[0]) == b"%d" % n
        assert calls > 10
        assert not late
