"""An ordered server whose waiters poll for what is new."""

from __future__ import annotations

import math
import threading
from collections.abc import Hashable
from time import monotonic

from typing_extensions import override

from pparallel.errors import ClosedError
from pparallel.interfaces.ordered_server import Found, OrderedServer, check_hashable
from pparallel.runtime import stopping
from pparallel.runtime.forks import Inherited


class PollingOrderedServer(OrderedServer):
    """Fills in :meth:`close` and :meth:`wait`, and knows whether the server is open.

    A backend calls :meth:`open` here at the end of its own, and :meth:`check_open` first in what it
    fills in: ``push``, ``fetch``, ``versions``, ``keys`` and ``delete``. A waiter asks for the
    versions of its key, and fetches a value only when there is a new one. In the child of a fork it
    is as open as it was, and closed by itself.

    Args:
        pause: seconds between two looks.
    """

    def __init__(self, pause: float) -> None:
        self._pause = pause
        self._ended = threading.Event()
        self._is_open = False
        _servers.add(self)

    @override
    def open(self) -> None:
        self._is_open = True

    @override
    def close(self) -> None:
        self._is_open = False
        self._ended.set()

    def check_open(self) -> None:
        """Refuse use before the server is opened, or after it is closed.

        Raises:
            ClosedError: it is not open.
        """
        if not self._is_open:
            raise ClosedError("the ordered server", "is not open")

    @override
    def wait(
        self, key: Hashable, version: Hashable | None = None, timeout: float | None = None
    ) -> Found | None:
        check_hashable("a key", key)
        check_hashable("a version", version)
        deadline = math.inf if timeout is None else monotonic() + timeout
        pause = 0.0
        with stopping.telling(self._ended.set):
            while not self._ended.wait(pause):
                found = self._newer(key, version)
                if found is not None:
                    return found
                pause = min(self._pause, deadline - monotonic())
                if pause <= 0:
                    return None
        self.check_open()
        raise ClosedError("the ordered server", "is closing: the job ends", consequence=True)

    def _after_fork(self) -> None:
        ended, self._ended = self._ended, threading.Event()  # a thread may have held its lock
        if ended.is_set():
            self._ended.set()

    def _newer(self, key: Hashable, version: Hashable | None) -> Found | None:
        if self.versions(key)[-1:] in ([], [version]):
            return None
        found = self.fetch(key, None)  # by its version it may be held no more
        return None if found is None or found[1] == version else found


_servers = Inherited(PollingOrderedServer._after_fork)
