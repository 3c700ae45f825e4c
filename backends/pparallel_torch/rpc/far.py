"""Watches members of other machines, which only their answers tell of."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from pparallel.runtime.resources import start_thread

logger = logging.getLogger(__name__)

Ended = Callable[[str, str], None]  #: (name, what is known of its end)

_LOOK = 0.1  #: part of the bound between two looks
_SILENT = 0.8  #: part of the bound after which one that does not answer is given up
_LATE = 3  #: times that between two looks after which this process itself was held up


class Ping(Protocol):
    """A sign of life that was asked for: a future of torch's."""

    def done(self) -> bool:
        """Return whether it has come, or never will."""

    def value(self) -> Any:
        """Return it, or raise why it never will come."""


class _Asked(NamedTuple):
    ping: Ping
    since: float


class FarWatch:
    """Asks each member on another machine for a sign of life, in one thread.

    A connection that breaks is seen at the next look; silence, as of a machine that is stopped or
    cut off, within the bound. torch's own threads answer, without the GIL.
    """

    def __init__(self, bound: float, ask: Callable[[str], Ping], ended: Ended) -> None:
        self._bound, self._ask, self._ended = bound, ask, ended
        self._asked: dict[str, _Asked] = {}
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, names: list[str]) -> None:
        """Watch these members."""
        if not names:
            return
        for name in names:
            self._asked[name] = _Asked(self._ask(name), time.monotonic())
        thread = threading.Thread(target=self._run, name="pparallel-far", daemon=True)
        self._thread = start_thread(thread)

    def close(self) -> None:
        """Watch nobody any more; safe to call again."""
        self._closed.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        pause, last = self._bound * _LOOK, time.monotonic()
        while not self._closed.wait(pause):
            now = time.monotonic()
            if now - last > _LATE * pause:  # answers may have come meanwhile, and not been seen
                self._asked = {name: _Asked(each.ping, now) for name, each in self._asked.items()}
            last = now
            for name, asked in list(self._asked.items()):
                try:
                    self._look(name, asked, now)
                except Exception:  # what fails once is tried again: nobody else looks
                    if not self._closed.is_set():
                        logger.exception("A look at member %r failed", name)

    def _look(self, name: str, asked: _Asked, now: float) -> None:
        if asked.ping.done():
            try:
                asked.ping.value()
            except RuntimeError as error:
                self._lose(name, f"cannot be reached: {error}")
                return
            self._asked[name] = _Asked(self._ask(name), now)
        elif now - asked.since > self._bound * _SILENT:
            self._lose(name, f"has not answered for {self._bound:g} s")

    def _lose(self, name: str, reason: str) -> None:
        self._asked.pop(name, None)
        if not self._closed.is_set():
            self._ended(name, reason)
