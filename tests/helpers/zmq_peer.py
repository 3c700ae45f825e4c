"""A member of a job on ZeroMQ in a process of its own, which the tests tell what to do."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from pparallel.interfaces.transport import Frames, Meeting
from pparallel.runtime.member import Member
from pparallel.runtime.request_transport import Handler
from pparallel.testing.patience import until
from pparallel_zmq import ZmqTransportConfig
from pparallel_zmq.transport import ZmqTransport

BOUND = 1.0


def handle(sender: str, frames: Frames) -> Frames | Future[Frames]:
    """Do what the first frame says."""
    what, _, value = bytes(frames[0]).decode(errors="replace").partition(" ")
    if what == "never":
        return Future()
    if what == "gil":
        threading.Timer(0.05, hold_the_gil, [float(value)]).start()
    if what == "environment":
        return [json.dumps(dict(os.environ)).encode()]
    return [sender.encode(), *frames]


def hold_the_gil(seconds: float) -> None:
    """Let no other Python code of this process run."""
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


def transport(name: str, names: Sequence[str], meeting: Meeting, **options: object) -> ZmqTransport:
    """Return the transport of one member."""
    config = ZmqTransportConfig(**{"liveness_bound": BOUND, "rendezvous_timeout": 20.0, **options})
    keys = meeting.keys.get(name, {})
    rank = list(names).index(name)
    member = Member(name, rank, rank, len(names), tuple(names), meeting.address, keys)
    return ZmqTransport(config, member=member)


class Heard:
    """The members that a transport has reported lost, with the reasons."""

    def __init__(self, of: ZmqTransport) -> None:
        self.all: list[tuple[str, str]] = []
        of.when_lost(lambda name, reason: self.all.append((name, reason)))

    def expect(self, name: str) -> str:
        """Wait until *name* has been reported, and return why."""
        until(lambda: name in dict(self.all), f"{name} was not reported lost")
        return dict(self.all)[name]


class Peer:
    """A member in a process of its own."""

    def __init__(
        self,
        name: str,
        names: Sequence[str],
        meeting: Meeting,
        prefix: Sequence[str] = (),
        **options: object,
    ) -> None:
        command = [*prefix, sys.executable, "-W", "error", __file__]
        pipe = subprocess.PIPE
        self.name = name
        self._has_begun = False
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        keys = {key: each.get_secret_value() for key, each in meeting.keys.get(name, {}).items()}
        self._say([name, list(names), meeting.address, keys, options])

    @property
    def pid(self) -> int:
        """The process."""
        return self.process.pid

    def begins(self) -> None:
        """Wait until it begins to open."""
        if not self._has_begun:
            self._has_begun = self.next() == "begins"

    def opened(self) -> Any:
        """Return whether it has opened, or why not."""
        self.begins()
        return self.next()

    def call(self, to: str, what: str, timeout: float = 20.0) -> Any:
        """Have it call another member; return what came of it."""
        self._say(["call", to, what, timeout])
        return self.next()

    def lost(self) -> list[list[str]]:
        """Return whom it has reported lost, and why."""
        self._say(["lost"])
        found: list[list[str]] = self.next()
        return found

    def next(self) -> Any:
        """Return what it says next."""
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
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()

    def _say(self, what: object) -> None:
        assert self.process.stdin is not None
        print(json.dumps(what), file=self.process.stdin, flush=True)


@contextmanager
def peers(names: Sequence[str], every: Sequence[str], meeting: Meeting) -> Iterator[list[Peer]]:
    """Start members *names* of the job of *every* in processes of their own."""
    started = [Peer(name, every, meeting) for name in names]
    try:
        yield started
    finally:
        for each in started:
            each.end()


@contextmanager
def opened(own: ZmqTransport, handler: Handler = handle) -> Iterator[Heard]:
    """Open a transport in this process."""
    heard = Heard(own)
    try:
        own.open(handler)
        yield heard
    finally:
        own.close()


def _say(what: object) -> None:
    print(json.dumps(what), flush=True)  # noqa: T201 - the test reads it


def _called(own: ZmqTransport, to: str, what: str, timeout: float) -> object:
    try:
        return [bytes(memoryview(each)).decode() for each in own.call(to, [what.encode()], timeout)]
    except Exception as error:  # noqa: BLE001 - told to the test
        return f"{type(error).__name__}: {error}"


def _run(name: str, names: list[str], address: str, keys: Mapping[str, str], options: Any) -> None:
    secret = {key: SecretStr(each) for key, each in keys.items()}
    own = transport(name, names, Meeting(address, {name: secret}), **options)
    heard = Heard(own)
    _say("begins")
    try:
        own.open(handle)
    except Exception as error:  # noqa: BLE001 - told to the test
        _say(f"{type(error).__name__}: {error}")
    else:
        _say("open")
    for line in sys.stdin:
        what, *args = json.loads(line)
        _say(heard.all if what == "lost" else _called(own, *args))
    own.close()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    _run(*json.loads(sys.stdin.readline()))
