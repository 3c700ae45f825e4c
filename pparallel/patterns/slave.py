"""One slave of a set, and the way its messages travel."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from pparallel.errors import PeerLostError


class Codec:
    """How the messages and results of a slave travel: within a process, as they are."""

    def opened(self, message: Any) -> Any:
        """Return what the slave sent."""
        return message

    def sealed(self, result: Any) -> Any:
        """Return what to complete the slave's call with."""
        return result


@dataclass(slots=True)
class Slave:
    """What a set knows of one of its slaves."""

    identifier: Any
    codec: Codec
    holder: str | None  # the member that it belongs to
    message: Any = None
    reply: Future[Any] | None = None  # there while it waits
    gone: PeerLostError | None = None
