"""Who connects to a member without being one: nothing is unpickled, nothing grows, all go on."""

from __future__ import annotations

import logging
import marshal
import os
import pickle
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from pathlib import Path

import dill
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr
from typer.testing import CliRunner

import pparallel
from pparallel import Runtime
from pparallel.cli import app
from pparallel.errors import AuthenticationError, ConfigError, PeerLostError, PparallelError
from pparallel.interfaces.transport import Frames
from pparallel.runtime.links import Hello, ProcessId, RefusedError
from pparallel.runtime.member import Member
from pparallel.testing.patience import PATIENCE, until
from pparallel.testing.threads import in_threads
from pparallel.testing.transport.alone import Received
from pparallel_ipc import IpcTransportConfig, handshake, listener, messages
from pparallel_ipc.handshake import inbound, outbound
from pparallel_ipc.transport import IpcTransport

NAMES = ("a", "b")
KEY = "a key that is long enough"


def member(
    name: str, folder: Path | str | None, key: str | None = KEY, names: Sequence[str] = NAMES
) -> Member:
    keys = {} if key is None else {"ipc": SecretStr(key)}
    place = None if folder is None else str(folder)
    return Member(name, names.index(name), 0, len(names), tuple(names), place, keys)


def echo(sender: str, frames: Frames) -> Frames | Future[Frames]:
    return [sender.encode(), *frames]


@contextmanager
def opened(*transports: IpcTransport) -> Iterator[None]:
    """Open transports together, for each waits for the others."""
    with ExitStack() as stack:
        for each in transports:
            stack.callback(each.close)
        in_threads(len(transports), lambda n: transports[n].open(Received(echo)))
        yield


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "m"
    made.mkdir(mode=0o700)
    return made


@pytest.fixture
def pair(folder: Path) -> Iterator[tuple[IpcTransport, IpcTransport]]:
    made = [IpcTransport(IpcTransportConfig(), member=member(name, folder)) for name in NAMES]
    with opened(*made):
        yield made[0], made[1]


def answers(asking: IpcTransport, asked: IpcTransport) -> None:
    """Check that *asked* answers."""
    reply = asking.exchange(asked.name, [b"", b"?"], PATIENCE)
    assert reply is not None
    assert [bytes(each) for each in reply] == [asking.name.encode(), b"?"]


@contextmanager
def stranger(folder: Path, number: int = 0) -> Iterator[socket.socket]:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(PATIENCE)
    with sock:
        sock.connect(str(folder / str(number)))
        yield sock


def hear(sock: socket.socket) -> bytes:
    """Return what is said to a stranger; empty at the end."""
    try:
        return sock.recv(4096)
    except ConnectionResetError:  # told once: what came before the end is there still
        return sock.recv(4096)


# -- who may come in --------------------------------------------------------------------------


def test_a_member_with_another_key_is_refused(folder: Path) -> None:
    right = IpcTransport(IpcTransportConfig(rendezvous_timeout=1), member=member("a", folder))
    wrong = IpcTransport(
        IpcTransportConfig(rendezvous_timeout=1), member=member("b", folder, "x" * 32)
    )
    errors: dict[str, PparallelError] = {}

    def open_it(number: int) -> None:
        transport = (right, wrong)[number]
        with pytest.raises(PparallelError) as caught:
            transport.open(Received(echo))
        errors[transport.name] = caught.value

    in_threads(2, open_it)
    assert isinstance(errors["b"], AuthenticationError)
    assert "does not know this job's key" in str(errors["b"])
    assert "the arrival of b" in str(errors["a"])
    for each in (right, wrong):
        each.close()


@pytest.mark.parametrize("given", [None, "missing", "open", "file"])
def test_where_members_meet_is_checked(tmp_path: Path, given: str | None) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    (tmp_path / "file").touch(mode=0o700)
    place = None if given is None else tmp_path / given
    transport = IpcTransport(IpcTransportConfig(directory=place), member=member("a", None))
    with pytest.raises(ConfigError, match=r"transport\.directory"):
        transport.open(Received(echo))
    transport.close()


def test_without_a_key_nothing_opens(folder: Path) -> None:
    transport = IpcTransport(IpcTransportConfig(), member=member("a", folder, None))
    with pytest.raises(ConfigError, match=r"transport\.key: .*pparallel\.launch"):
        transport.open(Received(echo))
    transport.close()


def test_members_started_by_hand_meet_by_their_config(folder: Path) -> None:
    config = IpcTransportConfig(directory=folder, key=SecretStr(KEY))
    a, b = (IpcTransport(config, member=member(name, None, None)) for name in NAMES)
    with opened(a, b):
        answers(a, b)
        answers(b, a)
    assert list(folder.iterdir()) == []


def test_a_name_that_lives_is_not_given_twice(
    folder: Path, pair: tuple[IpcTransport, IpcTransport]
) -> None:
    again = IpcTransport(IpcTransportConfig(), member=member("b", folder))
    with pytest.raises(PparallelError, match="another process is member 'b' already"):
        again.open(Received(echo))
    again.close()
    answers(*pair)


def test_a_stranger_with_the_key_and_a_name_that_is_no_members(
    folder: Path, pair: tuple[IpcTransport, IpcTransport]
) -> None:
    names = ("a", "c")
    strange = IpcTransport(IpcTransportConfig(), member=member("c", folder, names=names))
    (folder / "1").rename(folder / "elsewhere")  # or it would find its place taken
    with pytest.raises(PeerLostError, match="'c' is no member of this job; its members: a, b"):
        strange.open(Received(echo))
    strange.close()
    (folder / "elsewhere").rename(folder / "1")
    answers(*pair)


# -- the handshake ----------------------------------------------------------------------------


def hello(name: str) -> Hello:
    return Hello(name, os.urandom(16), ProcessId.here())


def admit(_: Hello) -> None:
    """Let everybody in."""


class End:
    """One end of a handshake.

    Attributes:
        first: its first word.
    """

    def __init__(self, part: handshake.Part) -> None:
        self._part = part
        self.first = next(part).said

    def take(self, said: bytes) -> tuple[bytes, Hello | None]:
        """Return the answer to a packet, and who is there, once that is proved."""
        try:
            return self._part.send(said).said, None
        except StopIteration as end:
            return end.value or (b"", None)  # it is over


def caller_of(name: str) -> End:
    return End(outbound(hello("b"), KEY.encode(), os.getpid(), name))


def called(name: str = "a", key: str = KEY) -> End:
    return End(inbound(hello(name), key.encode(), os.getpid(), admit))


def test_what_is_proved_is_bound_to_what_was_said() -> None:
    caller, there = caller_of("a"), called()
    challenge, nobody = there.take(caller.first)
    assert nobody is None
    proof, nobody = caller.take(challenge)
    assert nobody is None
    welcome, who = there.take(proof)
    assert who is not None
    assert who.name == "b"
    nothing, first = caller.take(welcome)
    assert nothing == b""
    assert first is not None
    assert first.name == "a"

    for replay in (proof, bytes(len(proof)), challenge[-32:], b""):
        other = called()
        other.take(caller_of("a").first)
        with pytest.raises(AuthenticationError):
            other.take(replay)


def test_who_answers_must_know_the_key_and_be_who_was_called() -> None:
    for there, name, error in (
        (called(key="another key"), "a", AuthenticationError),
        (called("c"), "a", RefusedError),
    ):
        caller = caller_of(name)
        challenge, _ = there.take(caller.first)
        with pytest.raises(error):
            caller.take(challenge)
    with pytest.raises(RefusedError, match="too late"):
        caller_of("a").take(handshake.refusal("too late"))
    with pytest.raises(AuthenticationError):
        caller_of("a").take(b"")


@settings(max_examples=30)
@given(st.lists(st.binary(max_size=handshake.LONGEST + 10), max_size=4))
def test_no_bytes_let_anybody_in(said: list[bytes]) -> None:
    there = called()
    for each in said:
        try:
            _, who = there.take(each)
        except (RefusedError, AuthenticationError):
            continue
        assert who is None


# -- strangers --------------------------------------------------------------------------------


@contextmanager
def nothing_is_unpickled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """Count what is unpickled or unmarshalled meanwhile."""
    seen: list[object] = []

    def refuse(data: object, *args: object, **options: object) -> object:
        seen.append(data)
        raise AssertionError("unpickled")

    with monkeypatch.context() as changed:
        for module in (pickle, dill, marshal):
            changed.setattr(module, "loads", refuse)
        changed.setattr(messages, "loads", refuse)
        yield seen


def garbage(number: int) -> list[bytes]:
    """Return what stranger *number* says: of many kinds."""
    right = caller_of("a").first
    kinds = [
        [],
        [b""],
        [os.urandom(100)],
        [os.urandom(60_000)],
        [right],
        [right[: len(right) // 2]],
        [right, os.urandom(32)],
        [right, os.urandom(5000)],
        [right, right, right],
        [pickle.dumps(os.system)],
        [marshal.dumps((messages.MESSAGE, [(0, ([b"x"], ()))]))],
        [marshal.dumps((messages.DIRECT,))],
    ]
    return kinds[number % len(kinds)]


def test_two_hundred_strangers(
    folder: Path,
    pair: tuple[IpcTransport, IpcTransport],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, b = pair
    for _ in range(2):  # the first call of a connection has no lane yet
        answers(b, a)
        answers(a, b)
    process = psutil.Process()
    descriptors, threads = process.num_fds(), process.num_threads()
    with ExitStack() as stack:
        with nothing_is_unpickled(monkeypatch) as seen:
            for number in range(200):
                sock = stack.enter_context(stranger(folder, number % 2))
                for packet in garbage(number):
                    try:
                        sock.send(packet, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
                    except (BrokenPipeError, ConnectionResetError):
                        break
            for number in range(2):  # all before these have been looked at once they are answered
                sock = stack.enter_context(stranger(folder, number))
                sock.send(os.urandom(50))
                assert hear(sock).startswith(b"-")
        assert seen == []
        answers(a, b)
        answers(b, a)
    until(lambda: process.num_fds() <= descriptors, "descriptors of strangers are left")
    assert process.num_threads() <= threads
    answers(a, b)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(min_size=1, max_size=3000), min_size=1, max_size=3))
def test_strangers_who_say_anything(
    folder: Path, pair: tuple[IpcTransport, IpcTransport], said: list[bytes]
) -> None:
    with stranger(folder) as sock:
        try:
            for each in said:
                sock.send(each)
        except (BrokenPipeError, ConnectionResetError):
            pass
        assert hear(sock).startswith(b"-")
    answers(*pair)


def test_who_says_nothing_is_turned_away(
    folder: Path, pair: tuple[IpcTransport, IpcTransport], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "PATIENCE", 0.05)
    with stranger(folder) as sock:
        assert b"did not prove who it is within 0.05 s" in hear(sock)
    answers(*pair)


def test_more_strangers_than_are_let_wait(
    folder: Path, pair: tuple[IpcTransport, IpcTransport], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "STRANGERS", 4)
    monkeypatch.setattr(listener, "PATIENCE", 0.5)
    with ExitStack() as stack:
        waiting = [stack.enter_context(stranger(folder, 1)) for _ in range(7)]
        listening = pair[1]._listener
        assert listening is not None
        until(lambda: len(listening._strangers) >= 4, "nobody came in")
        assert len(listening._strangers) == 4
        pair[0]._peers["b"].connection = None  # as of members that have not met
        answers(*pair)  # the connection has to be let in behind them
        for each in waiting:
            assert hear(each).startswith(b"-")


def test_a_stranger_is_not_told_the_key(
    folder: Path, pair: tuple[IpcTransport, IpcTransport], caplog: pytest.LogCaptureFixture
) -> None:
    with stranger(folder) as sock:
        sock.send(b"nonsense")
        answer = hear(sock)
    assert answer.startswith(b"-")
    shown = [answer.decode(errors="replace"), repr(member("a", folder)), caplog.text]
    assert not any(KEY in each for each in shown)


def look_around(rt: Runtime) -> tuple[str, list[str]]:
    """Return the job's key, and what anybody may see of this member."""
    transport = rt.transport
    assert isinstance(transport, IpcTransport)
    member, process = transport._member, psutil.Process()
    seen = [repr(process.cmdline()), repr(process.environ()), repr(rt), repr(rt.config)]
    rt.group().barrier(PATIENCE)
    return member.keys["ipc"].get_secret_value(), [*seen, repr(member), repr(vars(transport))]


def test_the_key_of_a_job_is_told_to_nobody(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    job = {"members": 2, "launcher": {"backend": "process"}, "transport": {"backend": "ipc"}}
    found = pparallel.launch(job, look_around)
    ((key,), seen) = {each for each, _ in found}, [text for _, texts in found for text in texts]
    assert len(key) >= 32
    config = IpcTransportConfig(key=SecretStr(key))
    seen += [repr(config), str(config), config.model_dump_json(), caplog.text, *capfd.readouterr()]
    seen += [CliRunner().invoke(app, [command]).output for command in ("schema", "doctor")]
    assert len(seen) == 20
    assert not [text for text in seen if key in text]
