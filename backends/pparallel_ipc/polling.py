"""Looks for what comes next for a short while before it is waited for.

To sleep, and to be woken on another core, takes longer than most calls do. But a thread that looks
takes its core from others, so it does that only while what it waits for comes soon, and is not made
on the same core.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from socket import MSG_DONTWAIT

from pparallel_ipc.messages import PACKET

SHORT = 150e-6  #: seconds for which it looks at least
SOON = 2e-3  #: seconds: what took longer to come is not looked for the next time
ROUND = 10e-6  #: seconds: where looking takes longer, another thread runs on this core meanwhile
SELDOM = 64  #: waits after which it is tried again there, at the most

_alone = threading.Lock()  # two threads of a process would only take the interpreter off each other
_pays = (os.cpu_count() or 1) > 1


class Polling:
    """Receives from one socket, by one thread at a time."""

    __slots__ = ("_in_vain", "_limit", "_receive", "_waits")

    def __init__(self, receive: Callable[..., bytes]) -> None:
        """Receive by *receive*, a socket's own."""
        self._receive = receive
        self._limit = 0.0  # seconds for which to look
        self._in_vain = 1
        self._waits = 0 if _pays else -1  # how many times to wait without a look at the time

    def receive(self) -> bytes:
        """Return what comes next; it is empty at the end."""
        try:
            if self._waits:
                self._waits -= 1
                return self._receive(PACKET)
            began = time.perf_counter()
            data = self._look(began) if self._limit and _alone.acquire(False) else None
            if data is None:
                data = self._receive(PACKET)
        except ConnectionResetError:  # told once: what came before the end is there still
            return self._receive(PACKET)
        waited = time.perf_counter() - began
        self._limit = min(max(2 * waited, SHORT), SOON) if waited < SOON else 0.0
        return data

    def _look(self, began: float) -> bytes | None:
        receive, now, rest, limit = self._receive, time.perf_counter, os.sched_yield, self._limit
        rounds, waited, data = 1, 0.0, None
        try:
            while data is None and waited < limit:
                try:
                    data = receive(PACKET, MSG_DONTWAIT)
                except BlockingIOError:
                    rest()
                    rounds += 1
                waited = now() - began
        finally:
            _alone.release()
        if waited < rounds * ROUND:
            self._in_vain = 1
        else:
            self._in_vain = self._waits = min(2 * self._in_vain, SELDOM)
        return data
