"""Two members on `ipc` in one process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import NamedTuple

from pparallel.interfaces.transport import Frames
from pparallel.runtime.member import Member
from pparallel.testing.threads import in_threads
from pparallel.testing.transport.alone import Answer, Received
from pparallel_ipc import IpcTransportConfig
from pparallel_ipc.transport import IpcTransport

NAMES = ("a", "b")


class Pair(NamedTuple):
    """Two members, and what each receives."""

    a: IpcTransport
    b: IpcTransport
    at_a: Received
    at_b: Received


def echo(sender: str, frames: Frames) -> Frames:
    return frames


@contextlib.contextmanager
def pair(
    answer: Answer = echo,
    config: IpcTransportConfig | None = None,
    opened: Callable[[IpcTransport], object] = lambda _: None,
) -> Iterator[Pair]:
    """Open two members, whose exchanges *answer* answers; *opened* is called once each is."""
    config = config or IpcTransportConfig()
    with ExitStack() as stack:
        meeting = stack.enter_context(IpcTransport.meeting(config, NAMES))
        members = [
            Member(name, n, n, 2, NAMES, meeting.address, meeting.keys[name])
            for n, name in enumerate(NAMES)
        ]
        a, b = (IpcTransport(config, member=each) for each in members)
        for each in (a, b):
            stack.callback(each.close)
        at_a, at_b = Received(answer), Received(answer)

        def begin(n: int) -> None:
            (a, b)[n].open((at_a, at_b)[n])
            opened((a, b)[n])

        in_threads(2, begin)
        yield Pair(a, b, at_a, at_b)


def ask(pair: Pair, *frames: bytes, timeout: float | None = 60.0) -> list[bytes] | None:
    """Have *a* ask *b*; return the reply."""
    found = pair.a.exchange("b", [b"", *frames], timeout)
    return None if found is None else [bytes(each) for each in found]
