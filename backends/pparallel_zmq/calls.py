"""Requests to other members: which way they take, and in which order."""

from __future__ import annotations

import itertools
import select
import threading
from concurrent.futures import Future
from threading import get_ident
from typing import TYPE_CHECKING

from pparallel.errors import CallTimeoutError, ClosedError, PeerLostError, ResourceExhaustedError
from pparallel.interfaces.transport import Frames
from pparallel.runtime.lean_future import LeanFuture
from pparallel.runtime.pending import Pending
from pparallel_zmq import wire
from pparallel_zmq.lanes import BrokenError, Lane
from pparallel_zmq.links import BROKE, Link
from pparallel_zmq.wire import Kind

if TYPE_CHECKING:
    from pparallel_zmq.network import Network


class _Here(threading.local):
    """What the calling thread has asked of each member last, if not by a lane."""

    def __init__(self) -> None:
        self.last: dict[str, int] = {}


class Calls:
    """Sends requests by the link to a member, or, where the caller waits, by a lane.

    What one thread sends to one member arrives in order: a call takes the way of the requests
    before it until the last of those has been answered.
    """

    def __init__(self, network: Network, pending: Pending[Frames]) -> None:
        self._network, self._membership = network, network.membership
        self._pending, self._limits = pending, network.limits
        self._patience = network.config.liveness_bound / 2
        self._numbers = itertools.count(1)
        self._here = _Here()

    def send(self, to: str, frames: Frames, timeout: float | None, future: Future[Frames]) -> None:
        """Send a request, whose reply completes *future*."""
        self._membership.check(to)
        link = self._network.link_to(to)
        number = next(self._numbers)
        part, raws = wire.pack(Kind.REQUEST, number, frames, self._limits)
        self._pending.watch(future, to, timeout)
        link.expect(number, future)
        self._note(to, link, number)
        link.request(part, raws, number, get_ident())
        if link.is_over:
            link.fail_all(lambda: self._why_over(to))

    def call(self, to: str, frames: Frames, timeout: float | None) -> Frames:
        """Send a request, and return its reply."""
        link = self._network.links.get(to)
        last = self._here.last.get(to)
        if link is None or link.is_over or not link.is_welcome or last in link.unanswered:
            return self._call_by_link(to, frames, timeout)
        self._membership.check(to)
        number = next(self._numbers)
        part, raws = wire.pack(Kind.REQUEST, number, frames, self._limits)
        try:
            lane = self._lane(link)
        except ResourceExhaustedError:
            return self._call_by_link(to, frames, timeout)
        try:
            return lane.call(link, part, raws, number, timeout)
        except BrokenError:
            raise self._why_broken(to, link) from None
        except BaseException as error:
            if isinstance(error, CallTimeoutError) or not isinstance(error, Exception):
                # It may be on its way still. What says that it is given up goes by the link, and
                # so does what this thread sends next: it comes there first.
                link.abort(number)
                self._note(to, link, number)
            raise
        finally:
            if lane.is_idle:
                link.keep(lane)
            else:
                lane.close()

    def _lane(self, link: Link) -> Lane:
        """Return a lane that no other thread uses.

        Raises:
            ResourceExhaustedError: there is none, and none can be made.
        """
        try:
            return link.idle.pop()
        except IndexError:
            return self._network.lane(link.to)

    def _call_by_link(self, to: str, frames: Frames, timeout: float | None) -> Frames:
        future: Future[Frames] = LeanFuture()
        self.send(to, frames, timeout, future)
        return future.result()

    def _note(self, to: str, link: Link, number: int) -> None:
        """Remember what this thread has asked of a member last, if not by a lane."""
        last = self._here.last
        link.unanswered.discard(last.get(to))
        link.unanswered.add(number)
        last[to] = number

    def _why_broken(self, to: str, link: Link) -> Exception:
        """Return why a lane has broken; that is known soon after."""
        if not link.is_over:
            waiting = select.poll()
            waiting.register(link.ended.fd, select.POLLIN)
            waiting.poll(self._patience * 1000)
        return self._why_over(to)

    def _why_over(self, to: str) -> Exception:
        if self._network.is_closed:
            return ClosedError(f"transport of {self._membership.me!r}")
        if not self._membership.expects(to):
            return PeerLostError(to, self._membership.reason(to))
        return PeerLostError(to, BROKE)
