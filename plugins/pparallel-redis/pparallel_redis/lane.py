"""Lanes: what makes that a change takes effect once, however often it has to be sent.

A lane makes one change at a time, and numbers them. With what a change does, the server notes its
number in the lane: a change that is sent again, since nobody knows whether it had arrived, is
answered as it was then, and one that arrives late does nothing.

Source: the sequence numbers of clients in Ongaro and Ousterhout, "In Search of an Understandable
Consensus Algorithm", section 8.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from time import monotonic
from typing import TypeVar

from pparallel.errors import ClosedError
from pparallel.runtime import stopping
from pparallel_redis.dialing import Dialer
from pparallel_redis.faults import NOT_HERE, NOT_NOW, is_final, lost, refusal, silent
from pparallel_redis.scripts import LANE_LIFE
from pparallel_redis.wire import ReplyError, Wire

T = TypeVar("T")

KEPT = 16  #: lanes that stay connected while nobody uses them
_FIRST, _LONGEST = 0.005, 0.5  #: seconds of the pauses between attempts

Act = Callable[[Wire, bool], T]
"""Uses a connection; is told whether it may have been used for this before."""


class Lane:
    """Makes one change after the other, over whatever connection there is.

    Attributes:
        name: by which the server knows it.
        number: of the change that it makes.
        wire: its connection.
    """

    def __init__(self) -> None:
        self.name = os.urandom(8).hex().encode()
        self.number = 0
        self.wire: Wire | None = None
        self._noted = -float(LANE_LIFE)

    @property
    def is_noted(self) -> bool:
        """Whether the server is sure to know the lane for as long as a change may take."""
        return monotonic() - self._noted < LANE_LIFE / 2

    def noted(self) -> None:
        """Remember that the server knows it from now on."""
        self._noted = monotonic()

    def token(self) -> bytes:
        """Return what only the change that is made now is called."""
        return b"%b.%016x" % (self.name, self.number)

    def drop(self) -> None:
        """Give up the connection."""
        if self.wire is not None:
            self.wire.close()
        self.wire = None


class Lanes:
    """The lanes of one server, each lent to one thread at a time."""

    def __init__(self, dialer: Dialer) -> None:
        self.dialer = dialer
        self.timeout = dialer.config.timeout
        self._all: set[Lane] = set()
        self._idle: list[Lane] = []
        self.closing = threading.Event()

    @contextmanager
    def lent(self) -> Iterator[Lane]:
        """Lend a lane; one whose use was interrupted is not used again."""
        lane = self._taken()
        try:
            yield lane
        except Exception:
            self._take_back(lane)
            raise
        except BaseException:
            self._forget(lane)
            raise
        self._take_back(lane)

    def run(self, lane: Lane, act: Act[T], doubt: str = "") -> T:
        """Return what *act* returns, connecting again where the connection is lost meanwhile.

        Args:
            lane: whose connection is used.
            act: what to do.
            doubt: what to say besides when the server stays away in the middle of it.

        Raises:
            RedisLostError: the server stays away or silent.
            PparallelError: it cannot be used.
            ClosedError: this was closed.
        """
        pauses = Pauses(self, doubt)
        doubtful = False
        while True:
            try:
                wire = self._wire(lane)
            except OSError as error:
                if is_final(error):
                    raise
                pauses.after(error, doubtful=doubtful)
                continue
            try:
                return act(wire, doubtful)
            except ReplyError as error:
                if error.code not in NOT_NOW | NOT_HERE:
                    raise refusal(self.dialer.place, error) from error
                lane.drop()
                pauses.after(error, doubtful=doubtful)
            except TimeoutError as error:
                lane.drop()
                self._check()
                raise silent(self.dialer.place, self.timeout, doubt) from error
            except OSError as error:
                lane.drop()
                doubtful = True
                pauses.after(error, doubtful=doubtful)
            except BaseException:
                lane.drop()
                raise

    def close(self) -> None:
        """Have those who use a lane fail, and close all connections."""
        self.closing.set()
        for lane in self._all.copy():
            wire = lane.wire
            if wire is not None:
                wire.wake()
        for lane in self._idle.copy():
            self._forget(lane)

    def abandon(self) -> None:
        """Let go of all, in a fork: the connections are the parent's."""
        for lane in self._all:
            lane.drop()

    def _wire(self, lane: Lane) -> Wire:
        self._check()
        if lane.wire is None:
            try:
                lane.wire = self.dialer.dial(partial(self._use, lane))
            except BaseException:
                lane.drop()
                raise
            self._check()
        return lane.wire

    def _use(self, lane: Lane, wire: Wire) -> None:
        """Have *wire* woken when this is closed, from its greeting on."""
        lane.wire = wire
        self._check()

    def _taken(self) -> Lane:
        self._check()
        try:
            return self._idle.pop()
        except IndexError:
            lane = Lane()
            self._all.add(lane)
            return lane

    def _take_back(self, lane: Lane) -> None:
        if len(self._idle) < KEPT:
            self._idle.append(lane)
        else:
            self._forget(lane)
        if self.closing.is_set():
            self._forget(lane)

    def _forget(self, lane: Lane) -> None:
        lane.drop()
        self._all.discard(lane)
        with suppress(ValueError):  # it is not idle
            self._idle.remove(lane)

    def _check(self) -> None:
        if self.closing.is_set():
            raise ClosedError("the ordered server")


class Pauses:
    """The pauses between attempts, which get longer, and end."""

    def __init__(self, lanes: Lanes, doubt: str = "") -> None:
        self._lanes = lanes
        self._doubt = doubt
        self._pause = _FIRST
        self._end = 0.0

    def after(self, error: Exception, *, doubtful: bool = False) -> None:
        """Wait before the next attempt.

        Raises:
            RedisLostError: there have been attempts for long enough.
            ClosedError: this was closed, or the job ends.
        """
        lanes = self._lanes
        now = monotonic()
        self._end = self._end or now + lanes.timeout
        if now >= self._end:
            doubt = self._doubt if doubtful else ""
            raise lost(lanes.dialer.place, lanes.timeout, error, doubt) from error
        signal = stopping.current()
        if signal is not None and signal.is_set():
            raise ClosedError("the ordered server", "is closing: the job ends", consequence=True)
        if lanes.closing.wait(min(self._pause, self._end - now)):
            raise ClosedError("the ordered server")
        self._pause = min(2 * self._pause, _LONGEST)
