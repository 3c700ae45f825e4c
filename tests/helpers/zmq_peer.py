"""A member of a job on ZeroMQ in a process of its own, which the tests tell what to do."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import SecretStr

from pparallel.errors import CallTimeoutError, PeerLostError
from pparallel.interfaces.transport import Frames, Meeting
from pparallel.runtime.member import Member
from pparallel.testing.patience import until
from pparallel_zmq import ZmqTransportConfig
from pparallel_zmq.transport import ZmqTransport

BOUND = 1.0
PLACES = ("ipc", "tcp://127.0.0.1:0")  #: where members meet


def handle(sender: str, frames: Frames) -> Frames | None:
    """Do what the first frame says; ``None``: never answer."""
    what = bytes(frames[0])
    if what == b"never":
        return None
    if what == b"environment":
        return [json.dumps(dict(os.environ)).encode()]
    return [sender.encode(), *frames]


def transport(name: str, names: Sequence[str], meeting: Meeting, **options: object) -> ZmqTransport:
    """Return the transport of one member."""
    config = ZmqTransportConfig(**{"liveness_bound": BOUND, "rendezvous_timeout": 20.0, **options})
    keys = meeting.keys.get(name, {})
    rank = list(names).index(name)
    member = Member(name, rank, rank, len(names), tuple(names), meeting.address, keys)
    return ZmqTransport(config, member=member)


class Asking:
    """What a transport reports, and requests by messages: each is answered by its handler.

    Attributes:
        own: the transport.
        lost: the members that it has reported lost, with the reasons.
        resets: the members to whom messages may have been lost.
        asked: who has asked something, in order.
    """

    def __init__(self, own: ZmqTransport) -> None:
        self.own = own
        self.lost: list[tuple[str, str]] = []
        self.resets: list[str] = []
        self.asked: list[str] = []
        self._numbers = itertools.count()
        self._waiting: dict[int, tuple[str, Future[Frames]]] = {}

    def request(self, to: str, frames: Frames) -> Future[Frames]:
        """Ask, and return a future of the answer."""
        number, future = next(self._numbers), Future[Frames]()
        self._waiting[number] = to, future
        self.own.send(to, [b"?", b"%d" % number, *frames])
        return future

    def call(self, to: str, frames: Frames, timeout: float = 20.0) -> Frames:
        """Ask, and wait for the answer."""
        try:
            return self.request(to, frames).result(timeout)
        except TimeoutError:
            raise CallTimeoutError(f"a request to {to!r}", timeout) from None

    def expect(self, name: str) -> str:
        """Wait until *name* has been reported lost, and return why."""
        until(lambda: name in dict(self.lost), f"{name} was not reported lost")
        return dict(self.lost)[name]

    def on_message(self, sender: str, frames: Frames) -> None:
        kind, number, *rest = frames
        if kind == b"?":
            self.asked.append(sender)
            answer = handle(sender, rest)
            if answer is not None:
                self.own.send(sender, [b"!", number, *answer])
        elif int(bytes(memoryview(number))) in self._waiting:
            self._waiting.pop(int(bytes(memoryview(number))))[1].set_result(rest)

    def on_exchange(self, sender: str, frames: Frames) -> Frames:
        raise AssertionError("there are no exchanges here")

    def on_reset(self, name: str, error: BaseException) -> None:
        self.resets.append(name)
        self._fail(name, error)

    def on_lost(self, name: str, reason: str) -> None:
        self.lost.append((name, reason))
        self._fail(name, PeerLostError(name, reason))

    def _fail(self, name: str, error: BaseException) -> None:
        for number, (to, future) in list(self._waiting.items()):
            if to == name:
                del self._waiting[number]
                future.set_exception(error)


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
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        keys = {key: each.get_secret_value() for key, each in meeting.keys.get(name, {}).items()}
        self._say([name, list(names), meeting.address, keys, options])

    @property
    def pid(self) -> int:
        """The process."""
        return self.process.pid

    def opened(self) -> Any:
        """Return whether it has opened, or why not."""
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
def opened(own: ZmqTransport) -> Iterator[Asking]:
    """Open a transport in this process."""
    found = Asking(own)
    try:
        own.open(found)
        yield found
    finally:
        own.close()


@contextmanager
def meeting(names: Sequence[str], place: str = PLACES[0]) -> Iterator[Meeting]:
    with ZmqTransport.meeting(ZmqTransportConfig(address=place), names) as found:
        yield found


class Job(NamedTuple):
    """A job whose first member is here, and its others in processes of their own."""

    own: Asking
    met: Meeting
    others: list[Peer]

    def answers(self) -> None:
        """Check that the members talk, both ways."""
        for each in self.others:
            assert self.own.call(each.name, [b"here"], 10)
            assert each.call("m0", "there") == [each.name, "there"]


@contextmanager
def job(place: str = PLACES[0], count: int = 2, **options: object) -> Iterator[Job]:
    """Open so many members, *m0* and so on; *options* are those of the first."""
    names = [f"m{number}" for number in range(count)]
    with (
        meeting(names, place) as met,
        peers(names[1:], names, met) as others,
        opened(transport("m0", names, met, **options)) as own,
    ):
        assert [each.opened() for each in others] == ["open"] * len(others)
        yield Job(own, met, others)


def _say(what: object) -> None:
    print(json.dumps(what), flush=True)  # noqa: T201 - the test reads it


def _called(own: Asking, to: str, what: str, timeout: float) -> object:
    try:
        return [bytes(memoryview(each)).decode() for each in own.call(to, [what.encode()], timeout)]
    except Exception as error:  # noqa: BLE001 - told to the test
        return f"{type(error).__name__}: {error}"


def _run(name: str, names: list[str], address: str, keys: Mapping[str, str], options: Any) -> None:
    secret = {key: SecretStr(each) for key, each in keys.items()}
    own = transport(name, names, Meeting(address, {name: secret}), **options)
    asking = Asking(own)
    try:
        own.open(asking)
    except Exception as error:  # noqa: BLE001 - told to the test
        _say(f"{type(error).__name__}: {error}")
    else:
        _say("open")
    for line in sys.stdin:
        what, *args = json.loads(line)
        _say(asking.lost if what == "lost" else _called(asking, *args))
    own.close()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    _run(*json.loads(sys.stdin.readline()))
