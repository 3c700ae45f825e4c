"""Requests that the runtime and backends answer, and their replies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from typing_extensions import Buffer


class Request(NamedTuple):
    """What a member asks of a service.

    Attributes:
        sender: the member that asks.
        body: a small object.
        buffers: raw memory, the receiver's own.
    """

    sender: str
    body: Any
    buffers: list[Buffer]


class Reply(NamedTuple):
    """What a service answers.

    Attributes:
        body: a small object.
        buffers: raw memory; it must stay unchanged until it is sent.
    """

    body: Any = None
    buffers: Sequence[Buffer] = ()


#: A service never blocks, for it runs on the thread that received the request, unless it is served
#: as heavy: one that must wait returns a future and completes it later.
Service = Callable[[Request], "Reply | Future[Reply]"]
