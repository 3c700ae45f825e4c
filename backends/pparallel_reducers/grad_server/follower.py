"""Begin when the primary does, without being waited for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

from pparallel.errors import ClosedError, DirectoryError
from pparallel.runtime.future import fail
from pparallel.runtime.rpc import Reply, Request


class Follower:
    """Asks the primary to be told when it begins, on a thread of its own.

    The primary may be made later: then asking fails, and it calls when it starts.

    Attributes:
        failure: what kept it from beginning, if something did.
    """

    def __init__(self, name: str, begin: Callable[[], object], ready: Future[None]) -> None:
        """Have *begin* called, which waits for the primary, and completes *ready*."""
        self._name, self._begin, self._ready = name, begin, ready
        self._lock = threading.Lock()
        self._following = self._called = False
        self.failure: BaseException | None = None

    def follow(self) -> None:
        """Ask, unless that is under way; never blocks."""
        with self._lock:
            self._called = True
            if self._following:
                return
            self._following = True
        threading.Thread(target=self._begin_in_time, name=self._name, daemon=True).start()

    def told_to(self, _: Request) -> Reply:
        """As :meth:`follow`, for the primary to call."""
        self.follow()
        return Reply()

    def _begin_in_time(self) -> None:
        while self._is_called() and not self._ready.done():
            try:
                self._begin()
            except DirectoryError:
                continue  # the primary is not made yet
            except Exception as error:  # noqa: BLE001 - it is kept, and whoever has pushed is told
                if not isinstance(error, ClosedError):
                    self.failure = error
                fail(self._ready, error)
            return

    def _is_called(self) -> bool:
        with self._lock:
            self._following, self._called = self._called, False
            return self._following
