"""Two members of a job in one process, on any transport, without the RPC layer."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import dill
import pytest

from pparallel.interfaces.transport import Frames, Meeting, TransportConfig
from pparallel.registry import default_registry
from pparallel.runtime.member import Member
from pparallel.testing.patience import PATIENCE, until
from pparallel.testing.threads import in_threads
from pparallel.testing.transport.alone import Received

NAMES = ("a", "b")
Answer = Callable[[Frames], "Frames | Future[Frames]"]


class Answering(Received):
    """Keeps what comes, and answers exchanges.

    Attributes:
        answer: returns the reply to the frames of a request; it may be replaced.
    """

    def __init__(self, answer: Answer = lambda frames: frames) -> None:
        super().__init__(lambda _, frames: self.answer(frames))
        self.answer = answer


class Pair(NamedTuple):
    """Two members, and what each receives."""

    a: Any
    b: Any
    at_a: Answering
    at_b: Answering
    meeting: Meeting


def made(config: TransportConfig, name: str, meeting: Meeting, names: Sequence[str] = NAMES) -> Any:
    """Return the transport of one member."""
    registry, rank = default_registry(), names.index(name)
    keys = meeting.keys.get(name, {})
    member = Member(name, rank, rank, len(names), tuple(names), meeting.address or None, keys)
    cls: Any = registry.load(registry.find("transport", config.backend))
    return cls(config, member=member)


@contextmanager
def opened(
    *transports: Any, also: Callable[[Any], object] = lambda _: None
) -> Iterator[list[Answering]]:
    """Open transports at once; *also* is called with each as it is open."""
    receivers = [Answering() for _ in transports]

    def open_one(number: int) -> None:
        transports[number].open(receivers[number])
        also(transports[number])

    with ExitStack() as stack:
        for transport, receiver in zip(transports, receivers, strict=True):
            stack.callback(transport.close)
            stack.callback(receiver.gate.set)
        in_threads(len(transports), open_one)
        yield receivers


@contextmanager
def pair(config: TransportConfig, also: Callable[[Any], object] = lambda _: None) -> Iterator[Pair]:
    """Open the members *a* and *b*; *also* is called with each as it is open."""
    registry = default_registry()
    cls: Any = registry.load(registry.find("transport", config.backend))
    with cls.meeting(config, NAMES) as meeting:
        a, b = (made(config, name, meeting) for name in NAMES)
        with opened(a, b, also=also) as (at_a, at_b):
            yield Pair(a, b, at_a, at_b, meeting)


def does_not_open(transport: Any, kind: Any, why: str | None = None) -> str:
    """Check that a transport cannot be opened; return what the error says."""
    with pytest.raises(kind, match=why) as caught, opened(transport):
        pass
    return str(caught.value)


@contextmanager
def nothing_is_unpickled(monkeypatch: pytest.MonkeyPatch, *modules: Any) -> Iterator[None]:
    """Check that neither these *modules* nor those of pickles load anything inside."""
    loaded: list[object] = []

    def refuse(data: object, *_: object, **__: object) -> object:
        loaded.append(data)
        raise AssertionError("unpickled")

    with monkeypatch.context() as changed:
        for module in (pickle, dill, *modules):
            changed.setattr(module, "loads", refuse)
        changed.setattr(pickle, "load", refuse)
        yield
    assert loaded == []


def exchange(
    there: Pair, *frames: bytes | bytearray, timeout: float | None = PATIENCE
) -> list[bytes] | None:
    """Have *a* ask *b*; return the reply, or ``None`` where there is no way now."""
    found = there.a.exchange("b", [b"", *frames], timeout)
    return None if found is None else [bytes(each) for each in found]


def ask(there: Pair, *frames: bytes | bytearray, timeout: float | None = PATIENCE) -> list[bytes]:
    """Have *a* ask *b* once there is a way; return the reply."""
    found: list[list[bytes]] = []

    def has_reply() -> bool:
        reply = exchange(there, *frames, timeout=timeout)
        found.extend([] if reply is None else [reply])
        return reply is not None

    until(has_reply, "there is no direct connection")
    return found[0]


def ask_in_thread(there: Pair, *frames: bytes) -> Future[list[bytes] | None]:
    """Have *a* ask *b* in a thread, without a time-out; return a future of the reply."""
    asking: Future[list[bytes] | None] = Future()

    def run() -> None:
        try:
            asking.set_result(exchange(there, *frames, timeout=None))
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            asking.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return asking
