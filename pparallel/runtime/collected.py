"""Actions that follow the collection of an object, run outside the collector.

A finalizer runs anywhere, inside any lock: all that it does is put the action into a queue. One
thread runs the actions; it is there as long as an object is watched.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue

from pparallel.runtime.resources import start_thread

logger = logging.getLogger(__name__)


class _Watcher:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._actions: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._watched = 0

    def watch(self, watched: object, action: Callable[[], object]) -> Callable[[], object]:
        with self._lock:
            if not self._watched:
                start_thread(
                    threading.Thread(target=self._run, name="pparallel-collected", daemon=True)
                )
            self._watched += 1
        finalizer = weakref.finalize(watched, self._actions.put, action)
        finalizer.atexit = False  # the thread ends with the process
        return finalizer

    def _run(self) -> None:
        while True:
            action = self._actions.get()
            try:
                action()
            except Exception:
                logger.exception("The action that follows the collection of an object failed")
            del action  # and what it holds
            with self._lock:
                self._watched -= 1
                if not self._watched:
                    return


_watcher = _Watcher()


def when_collected(watched: object, action: Callable[[], object]) -> Callable[[], object]:
    """Have *action* called in a thread when *watched* has been collected.

    Args:
        watched: any object that weak references can refer to.
        action: must not hold *watched*, and should return soon, since others wait for the thread.

    Returns:
        A function that has *action* called now instead; safe to call again.

    Raises:
        ResourceExhaustedError: no thread can be started.
    """
    return _watcher.watch(watched, action)


def _start_afresh() -> None:
    global _watcher
    _watcher = _Watcher()  # the thread stayed in the parent, and with it what it watches


os.register_at_fork(after_in_child=_start_afresh)
