"""The thread that does what Ray's own threads have brought."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

logger = logging.getLogger(__name__)

Then = Callable[[Any, BaseException | None], None]  #: (result, error)


class Post:
    """Does one thing after the other, in a thread of its own: Ray's must not be kept.

    What it is given never blocks, and does not raise: what does so all the same is logged.
    """

    def __init__(self, name: str) -> None:
        self._todo: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def is_here(self) -> bool:
        """Whether the calling thread is this one."""
        return threading.get_ident() == self._thread.ident

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def do(self, action: Callable[[], None]) -> None:
        """Have *action* done."""
        self._todo.put(action)

    def when_done(self, ref: Any, then: Then) -> None:
        """Have *then* called with what *ref* stands for, or why that is not to be had."""

        def done(future: Any) -> None:  # in a thread of Ray's
            error = future.exception()
            self.do(lambda: then(None if error else future.result(), error))

        ref.future().add_done_callback(done)

    def close(self) -> None:
        """Do what there is, and end; safe to call again."""
        self._todo.put(None)
        if self._thread.ident is not None and not self.is_here:
            self._thread.join()

    def _run(self) -> None:
        while (action := self._todo.get()) is not None:
            try:
                action()
            except Exception:
                logger.exception("what Ray brought to %s could not be acted on", self._thread.name)
            del action  # its frames may lie in much memory
