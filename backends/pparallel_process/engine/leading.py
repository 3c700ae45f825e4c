"""Who receives: a thread that waits for a result does it for all, or else one of the engine's."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from threading import get_ident
from time import monotonic
from typing import Protocol

from pparallel.runtime.pools.waiting import Waiter

_RECHECK = 0.1  #: seconds; what a leader waits for may have been cancelled, and tasks may be stuck


class Led(Protocol):
    """What is led: an engine."""

    def look(self) -> bool | None:
        """Take in what has arrived; return True if there was something, else None."""

    def block(self, timeout: float | None) -> None:
        """Take in what arrives next, if it does within *timeout* seconds."""

    def needs_a_leader(self) -> bool:
        """Return whether something is to be waited for."""

    def is_over(self) -> bool:
        """Return whether nothing will ever arrive."""


class Leadership:
    """Sees to it that one thread receives while there is something to wait for.

    A thread that waits for its own result is woken by the system as that arrives: no other thread
    has to be woken first. Only where nobody waits does the dispatcher, a thread of its own.

    Args:
        led: the engine, which the dispatcher keeps alive only while it has something to do.
        name: of the dispatcher's thread.
    """

    def __init__(self, led: Led, name: str) -> None:
        self._led = weakref.ref(led)
        self._name = name
        self._leading = threading.Lock()
        self._leader = 0
        self._waiter = Waiter()
        self._kick = threading.Semaphore(0)
        self._dispatcher: threading.Thread | None = None
        self._is_parked = False
        self._starting = threading.Lock()
        self._is_stopped = False

    def attend(
        self,
        ready: Callable[[], bool],
        wait: Callable[[float | None], object],
        timeout: float | None,
    ) -> None:
        """See :meth:`pparallel.Pool.attend`."""
        led = self._led()
        nested = self._leader == get_ident()  # a callback waits for another result
        if led is None or not (nested or self.take()):
            wait(timeout)
            return
        deadline = None if timeout is None else monotonic() + timeout
        try:
            self._lead(led, ready, deadline)
        finally:
            if not nested:
                self.step_down()

    def take(self) -> bool:
        """Have the calling thread lead, if nobody does; return whether it does now."""
        if not self._leading.acquire(blocking=False):
            return False
        self._leader = get_ident()
        return True

    def step_down(self) -> None:
        """Have the calling thread lead no more, and another if there is something to wait for."""
        self._give_up()
        led = self._led()
        if led is not None and led.needs_a_leader():
            self.see_to_it()

    @property
    def is_taken(self) -> bool:
        """Whether some thread leads."""
        return self._leading.locked()

    def see_to_it(self) -> None:
        """Have the dispatcher receive, unless somebody does."""
        if self._is_parked:
            self._is_parked = False
            self._kick.release()
        elif self._dispatcher is None and not self._leading.locked():
            with self._starting:
                if self._dispatcher is None and not self._is_stopped:
                    dispatcher = threading.Thread(
                        target=_dispatch, args=(self._led, self), name=self._name, daemon=True
                    )
                    dispatcher.start()
                    self._dispatcher = dispatcher

    def stop(self) -> None:
        """End the dispatcher, and wait until nobody leads: safe to call again, once all is over."""
        with self._starting:
            self._is_stopped = True
            dispatcher = self._dispatcher
        self._kick.release()
        if dispatcher is not None and dispatcher is not threading.current_thread():
            dispatcher.join()
        if self._leader != get_ident():
            with self._leading:
                pass

    def reset(self) -> None:
        """Forget the threads: they are not in this process, a fork."""
        self._leading = threading.Lock()
        self._starting = threading.Lock()
        self._leader = 0
        self._dispatcher = None
        self._is_stopped = True

    def dispatch(self, led: Led) -> None:
        """Lead as long as there is something to wait for; the dispatcher's work."""
        while led.needs_a_leader() and not self._is_stopped:
            if not self.take():
                return  # whoever leads will see to it
            try:
                self._lead(led, lambda: self._is_stopped or not led.needs_a_leader(), None)
            finally:
                self._give_up()

    def park(self) -> bool:
        """Wait until the dispatcher has something to do; return False when it is to end."""
        self._is_parked = True
        led = self._led()
        if led is None or self._is_stopped:
            return False
        if led.needs_a_leader() and not self._leading.locked():
            self._is_parked = False
            return True
        del led
        self._kick.acquire()
        self._is_parked = False
        return not self._is_stopped

    def _lead(self, led: Led, ready: Callable[[], bool], deadline: float | None) -> None:
        look, block = led.look, led.block
        while not (ready() or led.is_over()):
            left = None if deadline is None else deadline - monotonic()
            if left is not None and left <= 0:
                return
            left = _RECHECK if left is None else min(left, _RECHECK)
            self._waiter.wait(look, lambda: block(left))  # noqa: B023 - called at once

    def _give_up(self) -> None:
        self._leader = 0
        self._leading.release()


def _dispatch(reference: weakref.ref[Led], leadership: Leadership) -> None:
    while True:
        led = reference()
        if led is None:
            return
        leadership.dispatch(led)
        del led
        if not leadership.park():
            return
