"""The part of a member in bounding staleness: see ``clock``."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from pparallel_reducers.grad_server.tickets import Ticket

Enter = Callable[[str, int | None], Ticket]  #: :meth:`Clock.enter` for this member, and its result
Claim = Callable[[str, int, int | None], Ticket | None]  #: :meth:`Clock.claim` for this member


class Pace:
    """A member's side of one clock.

    It holds one ticket at most for the next gradient, and one for each that a thread is pushing.
    """

    def __init__(
        self,
        enter: Enter,
        claim: Claim,
        give_back: Callable[[int], None],
        abandon: Callable[[int | None], None] = lambda _: None,
    ) -> None:
        self._enter = enter
        self._claim = claim
        self._give_back = give_back
        self._abandon = abandon
        self._newest: int | None = None  # the last ticket that was got
        self._interrupted: list[int | None] | None = None  # tickets given back meanwhile
        self._lock = threading.Lock()
        self._next: _Held | None = None
        self._pushing: dict[int, _Held] = {}  # by thread

    def before_pull(self, via: str) -> int:
        """Get a ticket for the next gradient; return the version that a pull finds at least.

        With ``max_staleness=0`` it waits until the last gradient is reduced.
        """
        self._recover()
        unused = self._unused()
        for each in unused[1:]:
            self._give_back(each.ticket.serial)
        back = unused[0].ticket.serial if unused else None
        try:
            ticket = self._enter(via, back)
        except BaseException:
            self._interrupted = [back]
            raise
        with self._lock:
            self._newest = max(ticket.serial, self._newest or 0)
            others, self._next = self._next, _Held(via, ticket)
        if others is not None:  # another thread has pulled meanwhile
            self._give_back(others.ticket.serial)
        return ticket.version

    def give_up(self) -> None:
        """Give back what this thread has no use for, as it is about to pull."""
        self._recover()
        for each in self._unused():
            self._give_back(each.ticket.serial)

    def for_push(self, via: str, version: int) -> Ticket | None:
        """Return the ticket for a gradient computed on *version*; None: it is too old to push.

        If this thread asks again before :meth:`used`, the attempt before has failed, and its
        ticket serves again.
        """
        self._recover()
        thread = threading.get_ident()
        with self._lock:
            held = self._pushing.pop(thread, None)
            if held is None:
                held, self._next = self._next, None
        if held is None or held.via != via or held.ticket.version > version:
            back = None if held is None else held.ticket.serial
            try:
                ticket = self._claim(via, version, back)
            except BaseException:
                self._interrupted = [back]
                raise
            if ticket is None:
                return None
            held = _Held(via, ticket)
        with self._lock:
            self._newest = max(held.ticket.serial, self._newest or 0)
            self._pushing[thread] = held
        return held.ticket

    def used(self) -> None:
        """Note that the gradient was accepted that this thread was last given a ticket for."""
        with self._lock:
            self._pushing.pop(threading.get_ident(), None)

    def taken(self, serial: int) -> None:
        """Note that the gradient with that ticket was accepted, whose push was interrupted."""
        with self._lock:
            self._pushing = {
                thread: each
                for thread, each in self._pushing.items()
                if each.ticket.serial != serial
            }

    def leave(self) -> None:
        """Give back what is not going to be used by any thread."""
        self._recover()
        with self._lock:
            unused = [*self._pushing.values()]
            self._pushing.clear()
        for each in [*unused, *self._unused()]:
            self._give_back(each.ticket.serial)

    def _recover(self) -> None:
        """If the last wait for a ticket was interrupted, say that nobody waits for it any more."""
        if (interrupted := self._interrupted) is None:
            return
        self._abandon(self._newest)
        for serial in interrupted:
            if serial is not None:
                self._give_back(serial)
        self._interrupted = None

    def _unused(self) -> list[_Held]:
        """Take out what this thread did not get rid of, and what is for the next gradient."""
        with self._lock:
            found = [self._pushing.pop(threading.get_ident(), None), self._next]
            self._next = None
        return [each for each in found if each is not None]


class _Held(NamedTuple):
    via: str  # the secondary that it is good for
    ticket: Ticket
