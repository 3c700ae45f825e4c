"""When a thread that waits for something looks for it, and when it just waits."""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

import pytest

from pparallel.runtime import polling
from pparallel.runtime.polling import SELDOM, SOON, Polling


class Source:
    """Stands for a socket and the clock: gives what it is told to, and notes how it was asked."""

    def __init__(self) -> None:
        self.coming: deque[bytes | BaseException | None] = deque()
        self.asked = ""  #: "w" for each time that it was waited for, "l" for each look
        self.takes = 1e-6  #: seconds
        self._now = 0.0

    def perf_counter(self) -> float:
        return self._now

    def wait(self) -> bytes:
        self.asked += "w"
        while (found := self._next()) is None:
            pass
        return found

    def look(self) -> bytes | None:
        self.asked += "l"
        return self._next()

    def _next(self) -> bytes | None:
        self._now += self.takes
        found = self.coming.popleft()
        if isinstance(found, BaseException):
            raise found
        return found


@pytest.fixture(autouse=True)
def several_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "_pays", True)


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Iterator[Source]:
    found = Source()
    monkeypatch.setattr(polling, "time", found)
    yield found
    assert polling._alone.acquire(False), "nobody can look any more"
    polling._alone.release()


def quick(source: Source) -> Polling[bytes]:
    """Return one to which something has just come soon."""
    found = Polling(source.wait, source.look)
    source.coming.append(b"first")
    assert found.receive() == b"first"
    assert source.asked == "w"
    return found


def test_what_comes_soon_is_looked_for_the_next_time(source: Source) -> None:
    found = quick(source)
    source.coming.extend([None, None, b"second", b"third"])
    assert found.receive() == b"second"
    assert source.asked == "wlll"
    assert found.receive() == b"third"
    assert source.asked == "wllll"


def test_what_takes_long_is_waited_for(source: Source) -> None:
    found = quick(source)
    source.takes = SOON
    source.coming.extend([None, b"second", b"third"])
    assert found.receive() == b"second"
    assert source.asked == "wlw"
    assert found.receive() == b"third"
    assert source.asked == "wlw" + "w"


def test_nothing_is_looked_for_while_another_thread_needs_the_core(source: Source) -> None:
    found = quick(source)
    source.takes = 10 * polling.ROUND
    looks = []
    for n in range(400):
        source.coming.extend([None, b"%d" % n])
        source.asked = ""
        assert found.receive() == b"%d" % n
        looks.append(source.asked == "ll")
    assert looks.index(True) == 0
    assert 1 <= sum(looks[-2 * SELDOM :]) <= 2


def test_one_thread_of_a_process_looks_at_a_time(source: Source) -> None:
    found = quick(source)
    source.coming.extend([None, b"second", None, b"third"])
    with polling._alone:
        assert found.receive() == b"second"
    assert source.asked == "wlw", "there is no second look"
    assert found.receive() == b"third"
    assert source.asked == "wlwll"


def test_what_is_there_is_received_by_the_first_look(source: Source) -> None:
    found = quick(source)
    source.takes = 10 * polling.ROUND
    for n in range(400):
        source.coming.append(b"%d" % n)
        assert found.receive() == b"%d" % n
    assert source.asked == "w" + 400 * "l"


def test_an_error_is_raised(source: Source) -> None:
    found = quick(source)
    source.coming.extend([None, OSError("gone"), b"second"])
    with pytest.raises(OSError, match="gone"):
        found.receive()
    assert found.receive() == b"second"


def test_with_one_core_nothing_is_looked_for(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polling, "_pays", False)
    found = quick(source)
    source.coming.extend([b"x"] * 10)
    for _ in range(10):
        assert found.receive() == b"x"
    assert source.asked == 11 * "w"


def test_through_sockets() -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def receiver(end: socket.socket) -> Callable[[], bytes]:
        def look() -> bytes | None:
            try:
                return end.recv(100, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return None

        return Polling(lambda: end.recv(100), look).receive

    def answer() -> None:
        receive = receiver(there)
        while data := receive():
            there.send(data)

    with here, there:
        thread = threading.Thread(target=answer)
        thread.start()
        receive = receiver(here)
        for n in range(2000):
            here.send(b"%d" % n)
            assert receive() == b"%d" % n
            if n % 500 == 0:
                time.sleep(2 * SOON)
        here.shutdown(socket.SHUT_RDWR)
        thread.join()
        assert receive() == b""
