"""The shared memory of one member, and that of the others as far as it knows them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from weakref import WeakSet

from pparallel.runtime.links import Hello, ProcessId
from pparallel.runtime.links.dispatcher import Dispatcher
from pparallel.runtime.memory import Arena, Payload
from pparallel_ipc import messages

_IDLE = 1.5  #: seconds after which the memory of free blocks is given back
_AGAIN = 0.5  #: seconds between two looks whether it is to be


class Arenas:
    """One's own arena, from which what one sends is allocated, and those of the others."""

    def __init__(self, budget: int | None, name: str) -> None:
        self._budget, self._name = budget, name
        self._own: Arena | None = None
        self._has_pages = self._looks = False
        self._others: dict[str, Arena] = {}
        self._attached: WeakSet[Arena] = WeakSet()  # those, and what was forgotten and is in use
        self._processes: dict[str, ProcessId] = {}
        self._lock = threading.RLock()

    def open(self, dispatcher: Dispatcher) -> None:
        """Make one's own, the free memory of which *dispatcher* gives back after a while.

        Raises:
            ResourceExhaustedError: there is no descriptor left, or no room among the addresses.
        """
        self._own = Arena.create(self._name, self._budget)

        def grown() -> None:
            if not self._has_pages:
                self._has_pages = True
                dispatcher.call(partial(self._start_to_look, dispatcher))

        self._own.grown = grown

    def _start_to_look(self, dispatcher: Dispatcher) -> None:
        if not self._looks:
            self._look(dispatcher)

    def _look(self, dispatcher: Dispatcher) -> None:
        """Give back what has been free for a while, and look again later if there is more."""
        assert self._own is not None
        self._has_pages = False  # what is taken from here on begins anew
        self._own.trim(_IDLE)
        used = self._own.usage()
        self._looks = bool(used.leased or used.free)
        if self._looks:
            self._has_pages = True
            dispatcher.call_later(_AGAIN, partial(self._look, dispatcher))

    @property
    def descriptor(self) -> int:
        """One's own arena's, for others to attach to; -1: there is none."""
        return -1 if self._own is None else self._own.fd

    def of(self, name: str, own: bool) -> Arena | None:
        """Return one's own, or that of member *name*; ``None``: there is none, or not yet."""
        return self._own if own else self._others.get(name)

    def outbound(self) -> Payload:
        """Return what carries large data to a member that this one connects to."""
        return Payload([self._own, None], 0)

    def payload(self, hello: Hello, fds: Sequence[int], *, calling: bool) -> Payload:
        """Return what carries large data to and from a member.

        The descriptor of its arena, or nothing, is in *fds*, which are closed here unless this
        raises. This member is the one that connects if it is *calling*.

        Raises:
            ValueError: the descriptor is no arena's.
            OSError: there is no room for it.
        """
        name = hello.name
        with self._lock:
            self._processes[name] = hello.process
            if fds and name not in self._others:
                self._others[name] = arena = Arena.attach(fds[0])
                self._attached.add(arena)
            messages.close(fds)
            other = self._others.get(name)
        return Payload([self._own, other], 0) if calling else Payload([other, self._own], 1)

    def forget(self, name: str) -> None:
        """Let go of what a member had that has ended."""
        with self._lock:
            self._others.pop(name, None)  # not closed: an answer that has come is still to be read
            process = self._processes.pop(name, None)
        # One that was given up may go on: what it has here is its own as long as it lives.
        if self._own and process and process.watchable and not process.lives():
            self._own.reclaim(process.pid)

    def close(self) -> None:
        """Give all of it back; views that live stay valid."""
        self._others.clear()
        for each in list(self._attached):
            each.close()
        if self._own is not None:
            self._own.close()
