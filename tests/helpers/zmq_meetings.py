"""Where members on ZeroMQ meet in tests, and what is waited for."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from zmq_peer import BOUND

from pparallel.interfaces.transport import Meeting
from pparallel.runtime.links.process import ProcessId
from pparallel_zmq import ZmqTransportConfig
from pparallel_zmq.transport import ZmqTransport

PLACES = ("ipc", "tcp://127.0.0.1:0")


@contextmanager
def meeting(names: Sequence[str], place: str = "ipc") -> Iterator[Meeting]:
    with ZmqTransport.meeting(ZmqTransportConfig(address=place), names) as found:
        yield found


@pytest.fixture
def unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have members judged by their connections alone, as on another machine."""
    monkeypatch.setattr(ProcessId, "watchable", property(lambda _: False))


def ends_in_time(call: threading.Thread) -> None:
    """Check that a call that waits for a dead member is over within five times the bound."""
    call.join(5 * BOUND)
    assert not call.is_alive(), "the call still waits"
