"""The thread that acts on what Ray's own threads bring."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from ray.exceptions import RayError

from pparallel.runtime.resources import start_thread

logger = logging.getLogger(__name__)

Then = Callable[[Any, BaseException | None], None]  #: (result, error)


class Dispatcher:
    """Runs one action after the other in a thread of its own: Ray's threads must not be kept.

    Actions neither block nor raise; an exception is logged.
    """

    def __init__(self, name: str) -> None:
        self._actions: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def is_here(self) -> bool:
        """Whether the calling thread is this one."""
        return threading.get_ident() == self._thread.ident

    def start(self) -> None:
        """Begin.

        Raises:
            ResourceExhaustedError: there is no thread for it.
        """
        start_thread(self._thread)

    def call(self, action: Callable[[], None]) -> None:
        """Have *action* run."""
        self._actions.put(action)

    def ask(self, method: Any, *args: object, then: Then) -> None:
        """Call a method of an actor, and have *then* called with its result, or with an error."""
        try:
            ref = method.remote(*args)
        except (RayError, RuntimeError) as raised:  # this process has been disconnected
            error = raised
            self.call(lambda: then(None, error))
        else:
            self.when_done(ref, then)

    def when_done(self, ref: Any, then: Then) -> None:
        """Have *then* called with the value of *ref*, or the error in its place."""

        def done(future: Any) -> None:  # in a thread of Ray's
            error = future.exception()
            self.call(lambda: then(None if error else future.result(), error))

        ref.future().add_done_callback(done)

    def close(self) -> None:
        """Run what there is, and end; safe to call again."""
        self._actions.put(None)
        if self._thread.ident is not None and not self.is_here:
            self._thread.join()

    def _run(self) -> None:
        while (action := self._actions.get()) is not None:
            try:
                action()
            except Exception:
                logger.exception("%s could not act on what Ray brought", self._thread.name)
            del action  # its frames may lie in much memory
