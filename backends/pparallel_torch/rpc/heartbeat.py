"""Watches members of other machines, whose ends only missing answers show."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pparallel.runtime.resources import start_thread

if TYPE_CHECKING:
    from pparallel_torch.rpc.agent import Done

logger = logging.getLogger(__name__)

_LOOK = 0.1  #: part of the bound between two looks
_SILENT = 0.8  #: part of the bound after which one that does not answer is given up
_LATE = 3  #: times that between two looks after which this process itself was held up


class Heartbeat:
    """Asks each member on another machine for a sign of life, in one thread.

    A connection that breaks is seen at the next look; silence, as of a machine that is stopped or
    cut off, within the bound. torch's own threads answer, without the GIL.
    """

    def __init__(
        self, bound: float, ask: Callable[[str], Done], ended: Callable[[str, str], None]
    ) -> None:
        self._bound, self._ask, self._ended = bound, ask, ended
        self._asked: dict[str, tuple[Done, float]] = {}  # and since when
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, names: list[str]) -> None:
        """Watch these members."""
        if names:
            self._asked = {name: (self._ask(name), time.monotonic()) for name in names}
            thread = threading.Thread(target=self._run, name="pparallel-heartbeat", daemon=True)
            self._thread = start_thread(thread)

    def close(self) -> None:
        """Watch nobody any more; safe to call again."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        pause, last = self._bound * _LOOK, time.monotonic()
        while not self._closed.wait(pause):
            now = time.monotonic()
            if now - last > _LATE * pause:  # answers may have come meanwhile, and not been seen
                self._asked = {name: (ping, now) for name, (ping, _) in self._asked.items()}
            last = now
            for name, (ping, since) in list(self._asked.items()):
                try:
                    self._look(name, ping, since, now)
                except Exception:  # what fails once is tried again: nobody else looks
                    if not self._closed.is_set():
                        logger.exception("A look at member %r failed", name)

    def _look(self, name: str, ping: Done, since: float, now: float) -> None:
        if not ping.done():
            if now - since > self._bound * _SILENT:
                self._lose(name, f"has not answered for {self._bound:g} s")
            return
        try:
            ping.value()
        except RuntimeError as error:
            self._lose(name, f"cannot be reached: {error}")
        else:
            self._asked[name] = self._ask(name), now

    def _lose(self, name: str, reason: str) -> None:
        del self._asked[name]
        if not self._closed.is_set():
            self._ended(name, reason)
