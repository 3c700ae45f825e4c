"""What is to be done when an object is collected, done outside the collector.

A finalizer runs anywhere, inside any lock. It may therefore only put into a queue; the thread
that does the rest lives as long as there is an object to watch.
"""

from __future__ import annotations

import logging
import queue
import threading
import weakref
from collections.abc import Callable

logger = logging.getLogger(__name__)

Action = Callable[[], object]

LINGER = 0.05  #: seconds that the thread stays when there is nothing to watch


class Departures:
    """Watches objects, and acts when they are gone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._actions: queue.SimpleQueue[Action] = queue.SimpleQueue()
        self._watched = 0
        self._thread: threading.Thread | None = None

    def watch(self, watched: object, action: Action) -> Callable[[], object]:
        """Have *action*, which must not hold *watched*, called once *watched* is collected.

        Returns:
            A function that has it called now instead; safe to call again.
        """
        finalizer = weakref.finalize(watched, self._actions.put, action)
        finalizer.atexit = False  # whoever waits then is a thread that ends with the process
        with self._lock:
            self._watched += 1
            if self._thread is None or not self._thread.is_alive():  # not alive: after a fork
                self._thread = threading.Thread(
                    target=self._serve, name="pparallel-departures", daemon=True
                )
                self._thread.start()
        return finalizer

    def _serve(self) -> None:
        while True:
            try:
                action = self._actions.get(timeout=None if self._watched else LINGER)
            except queue.Empty:
                with self._lock:
                    if not self._watched:
                        self._thread = None
                        return
                continue
            try:
                action()
            except Exception:
                logger.exception("What is done for a collected object failed")
            del action
            with self._lock:
                self._watched -= 1


departures = Departures()  #: one thread serves the whole process
