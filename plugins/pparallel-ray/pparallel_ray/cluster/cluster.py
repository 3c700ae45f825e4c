"""One connection of this process to a Ray cluster, which all components share."""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from pparallel.errors import ClosedError
from pparallel_ray.cluster import connecting
from pparallel_ray.cluster.config import RayConnection

logger = logging.getLogger(__name__)


class _Shared:
    """The connection of this process, while components use it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._number = 0  # of the connection
        self._users = 0
        self._ending = ExitStack()

    def acquire(self, wanted: RayConnection) -> int:
        """Use the connection, made now if need be; return its number."""
        with self._lock:
            if connecting.is_connected():
                connecting.check_same(wanted)
            else:
                self._forget()
                self._ending = connecting.connected(wanted)
                self._number += 1
            self._users += 1
            return self._number

    def release(self, number: int) -> None:
        """Use the connection of that number no longer."""
        with self._lock:
            if number == self._number:
                self._users -= 1
                if self._users == 0:
                    self._ending.close()

    def _forget(self) -> None:
        """Let go of a connection that ended while it was used: the program called Ray itself."""
        if self._users:
            logger.warning("the connection to Ray was closed while %d used it", self._users)
        self._users = 0
        self._ending.close()


_shared = _Shared()


class Cluster:
    """One component's use of the Ray cluster that this process is connected to.

    Connecting and letting go may be done in any thread. A cluster that this process started ends
    with the last of its users, and with the program however that ends; one that ran before is
    left as it is, and left connected if it was connected before.

    Args:
        wanted: which cluster to use.
    """

    def __init__(self, wanted: RayConnection) -> None:
        self._wanted = wanted
        self._lock = threading.Lock()
        self._connection: int | None = None

    @property
    def address(self) -> str:
        """Where the cluster is found (``host:port``), for other processes to connect to it.

        Raises:
            ClosedError: it is not open.
        """
        if self._connection is None:
            raise ClosedError("the connection to Ray", "is not open")
        return connecting.address()

    def open(self) -> None:
        """Connect, or start a cluster, unless that was done; opening again does nothing.

        Raises:
            ConfigError: there is no such cluster, it is of another version of Ray or Python, or
                this process is connected to another.
            AuthenticationError: the cluster wants a token that this process does not have.
        """
        with self._lock:
            if self._connection is None:
                self._connection = _shared.acquire(self._wanted)

    def close(self) -> None:
        """Let go; may be called again."""
        with self._lock:
            number, self._connection = self._connection, None
            if number is not None:
                _shared.release(number)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()
