"""What was put into a queue that had no room for it, on its way by a thread of its own."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing import util

from typing_extensions import Buffer

from pparallel.errors import PparallelError

logger = logging.getLogger(__name__)

Deliver = Callable[[Sequence[Buffer]], object]

_BEFORE_EXIT = -5  #: after what has a higher priority, as for the queues of ``multiprocessing``


class Backlog:
    """Messages in the order in which they were put, for one process.

    The end of the process waits until they have been delivered, as with the queues of
    ``multiprocessing``.

    Args:
        deliver: puts a message into the queue, waiting for room.
    """

    def __init__(self, deliver: Deliver) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()  #: held by whoever puts a message, so that they stay in order
        self._deliver = deliver
        self._messages: deque[list[bytes]] = deque()
        self._thread: threading.Thread | None = None
        self._waits_at_exit = True
        self._exit: util.Finalize | None = None
        self._at_the_end: Callable[[], object] | None = None

    def __len__(self) -> int:
        return len(self._messages)

    def append(self, message: Sequence[Buffer]) -> None:
        """Have *message* delivered after those before it; under the lock."""
        self._messages.append([bytes(each) for each in message])
        if self._thread is None:
            self._thread = threading.Thread(target=self._feed, name="pparallel-feeder", daemon=True)
            self._thread.start()
            if self._waits_at_exit:
                self._exit = util.Finalize(None, self.join, exitpriority=_BEFORE_EXIT)

    def finish(self, act: Callable[[], object]) -> None:
        """Call *act* once all messages have been delivered."""
        with self.lock:
            if self._thread is not None:
                self._at_the_end = act
                return
        act()

    def join(self) -> None:
        """Wait until all messages have been delivered."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def leave_at_exit(self) -> None:
        """Do not wait at the end of the process."""
        self._waits_at_exit = False
        if self._exit is not None:
            self._exit.cancel()

    def _feed(self) -> None:
        while self._messages:
            try:
                self._deliver(self._messages[0])
            except (PparallelError, OSError) as error:
                logger.error("a message of a queue is lost: %s", error)
            with self.lock:
                self._messages.popleft()
                if not self._messages:
                    self._thread = None
                    if self._exit is not None:
                        self._exit.cancel()
                    break
        if self._at_the_end is not None:
            self._at_the_end()
