"""A member of a job on Ray in a process of its own, which the tests tell what to do."""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from pparallel.errors import ClosedError, PeerLostError
from pparallel.interfaces.transport import Frames, Meeting
from pparallel.runtime.member import Member
from pparallel.testing.patience import PATIENCE, until
from pparallel_ray import RayTransportConfig
from pparallel_ray.transport.peer import Peer as RayPeer
from pparallel_ray.transport.transport import RayTransport

BOUND = 1.5

Handler = Callable[[str, Frames], Frames | None]


def handle(sender: str, frames: Frames) -> Frames | None:
    """Do what the first frame says; ``None``: there is no reply."""
    what, _, value = bytes(frames[0]).decode(errors="replace").partition(" ")
    if what == "never":
        return None
    if what == "gil":
        threading.Timer(0.05, hold_the_gil, [float(value)]).start()
    if what == "large":
        return [bytes(int(value))]
    return [sender.encode(), frames[0]]


def hold_the_gil(seconds: float) -> None:
    """Let no other Python code of this process run."""
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


class Talker:
    """A transport with requests and replies, which are messages.

    Attributes:
        transport: carries them.
        all: the members that have been reported lost, with the reasons.
        resets: why messages were lost.
    """

    def __init__(self, transport: RayTransport) -> None:
        self.transport = transport
        self.all: list[tuple[str, str]] = []
        self.resets: list[str] = []
        self.members = transport.members
        self._handler: Handler = handle
        self._numbers = itertools.count()
        self._asked: dict[bytes, tuple[str, Future[Frames]]] = {}

    def peer(self, name: str) -> RayPeer:
        """Return a member, as the transport sees it."""
        assert self.transport._connection is not None
        return self.transport._connection.peers[name]

    def open(self, handler: Handler = handle) -> None:
        self._handler = handler
        self.transport.open(self)

    def close(self) -> None:
        self.transport.close()
        for to, _ in list(self._asked.values()):
            self._fail(to, ClosedError("the transport"))

    def request(self, to: str, frames: Frames) -> Future[Frames]:
        number, future = b"%d" % next(self._numbers), Future[Frames]()
        self._asked[number] = to, future
        self.transport.send(to, [b"?", number, *frames])
        return future

    def call(self, to: str, frames: Frames, timeout: float = PATIENCE) -> Frames:
        return self.request(to, frames).result(timeout)

    def expect(self, name: str) -> str:
        """Wait until *name* has been reported lost, and return why."""
        until(lambda: name in dict(self.all), f"{name} was not reported lost")
        return dict(self.all)[name]

    def on_message(self, sender: str, frames: Frames) -> None:
        kind, number = (bytes(each) for each in frames[:2])
        if kind == b"!":
            self._asked.pop(number)[1].set_result(frames[2:])
            return
        reply = self._handler(sender, frames[2:])
        if reply is not None:
            with suppress(PeerLostError, ClosedError):
                self.transport.send(sender, [b"!", number, *reply])

    def on_exchange(self, sender: str, frames: Frames) -> Frames:
        raise AssertionError("there are no exchanges")

    def on_reset(self, name: str, error: BaseException) -> None:
        self.resets.append(str(error))
        self._fail(name, error)

    def on_lost(self, name: str, reason: str) -> None:
        self._fail(name, PeerLostError(name, reason))
        self.all.append((name, reason))

    def _fail(self, name: str, error: BaseException) -> None:
        for number, (to, future) in list(self._asked.items()):
            if to == name and self._asked.pop(number, None) is not None:
                future.set_exception(error)


def transport(name: str, names: Sequence[str], meeting: Meeting, **options: Any) -> Talker:
    """Return the transport of one member."""
    given = {"liveness_bound": BOUND, "rendezvous_timeout": 30.0, **options}
    rank = list(names).index(name)
    member = Member(
        name, rank, rank, len(names), tuple(names), meeting.address, meeting.keys.get(name, {})
    )
    return Talker(RayTransport(RayTransportConfig(**given), member=member))


class Peer:
    """A member in a process of its own."""

    def __init__(
        self, name: str, names: Sequence[str], meeting: Meeting, **options: object
    ) -> None:
        command = [sys.executable, "-W", "ignore", __file__]
        self.name = name
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        keys = {key: each.get_secret_value() for key, each in meeting.keys.get(name, {}).items()}
        self._say([name, list(names), meeting.address, keys, options])

    @property
    def pid(self) -> int:
        """The process."""
        return self.process.pid

    def call(self, to: str, what: str, timeout: float = 20.0) -> Any:
        """Have it call another member; return what came of it."""
        self._say(["call", to, what, timeout])
        return self.next()

    def send_large(self, to: str, size: int) -> None:
        """Have it send requests of *size* bytes until it ends."""
        self._say(["send", to, size])
        assert self.next() == "sending"

    def lost(self) -> list[list[str]]:
        """Return whom it has reported lost, and why."""
        self._say(["lost"])
        found: list[list[str]] = self.next()
        return found

    def next(self) -> Any:
        """Return what it says next: first whether it has opened, or why not."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"{self.name} has ended"
        return json.loads(line)

    def end(self) -> None:
        """Let it close and end, if it can."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(BrokenPipeError):  # it has ended
            self.process.stdin.close()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()

    def _say(self, what: object) -> None:
        assert self.process.stdin is not None
        print(json.dumps(what), file=self.process.stdin, flush=True)


@contextmanager
def peers(
    names: Sequence[str], every: Sequence[str], meeting: Meeting, **options: Any
) -> Iterator[list[Peer]]:
    """Start members *names* of the job of *every* in processes of their own."""
    started = [Peer(name, every, meeting, **options) for name in names]
    try:
        yield started
    finally:
        for each in started:
            each.end()


@contextmanager
def opened(own: Talker, handler: Handler = handle) -> Iterator[Talker]:
    """Open a transport in this process."""
    try:
        own.open(handler)
        yield own
    finally:
        own.close()


def _say(what: object) -> None:
    print(json.dumps(what), flush=True)  # noqa: T201 - the test reads it


def _called(own: Talker, to: str, what: str, timeout: float) -> object:
    try:
        return [bytes(memoryview(each)).decode() for each in own.call(to, [what.encode()], timeout)]
    except Exception as error:  # noqa: BLE001 - told to the test
        return f"{type(error).__name__}: {error}"


def _send(own: Talker, to: str, size: int) -> None:
    _say("sending")
    while True:
        own.call(to, [b"?", os.urandom(size)])


def _run(name: str, names: list[str], address: str, keys: Mapping[str, str], options: Any) -> None:
    secret = {key: SecretStr(each) for key, each in keys.items()}
    own = transport(name, names, Meeting(address, {name: secret}), **options)
    try:
        own.open()
    except Exception as error:  # noqa: BLE001 - told to the test
        _say(f"{type(error).__name__}: {error}")
    else:
        _say("open")
    for line in sys.stdin:
        what, *args = json.loads(line)
        if what == "send":
            threading.Thread(target=_send, args=(own, *args), daemon=True).start()
        else:
            _say(own.all if what == "lost" else _called(own, *args))
    own.close()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    _run(*json.loads(sys.stdin.readline()))
