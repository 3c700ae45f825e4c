"""Two members on `ipc` in one process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import ExitStack

from pparallel.interfaces.request_transport import Handler
from pparallel.interfaces.transport import Frames
from pparallel.runtime.member import Member
from pparallel.testing.threads import in_threads
from pparallel_ipc import IpcTransportConfig
from pparallel_ipc.transport import IpcTransport

NAMES = ("a", "b")


@contextlib.contextmanager
def pair(
    handler: Handler, config: IpcTransportConfig | None = None
) -> Iterator[tuple[IpcTransport, IpcTransport]]:
    """Open two members, whose requests *handler* handles."""
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
        in_threads(2, lambda n: (a, b)[n].open(handler))
        yield a, b


def echo(sender: str, frames: Frames) -> Frames:
    return frames
