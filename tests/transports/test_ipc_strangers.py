"""Who connects to a member without being one: nothing is unpickled, nothing grows, all go on."""

from __future__ import annotations

import marshal
import os
import pickle
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from member_pairs import NAMES, Pair, does_not_open, made, nothing_is_unpickled, opened
from pydantic import SecretStr

from pparallel.errors import (
    AuthenticationError,
    CallTimeoutError,
    ConfigError,
    PeerLostError,
    PparallelError,
)
from pparallel.interfaces.transport import Meeting
from pparallel.runtime.links import Hello, ProcessId, RefusedError
from pparallel.testing.patience import PATIENCE, until
from pparallel.testing.threads import in_threads
from pparallel_ipc import IpcTransportConfig, handshake, listener, messages
from pparallel_ipc.handshake import inbound, outbound
from pparallel_ipc.transport import IpcTransport

KEY = "a key that is long enough"
CONFIG = IpcTransportConfig()


def at(folder: Path | str, key: str | None = KEY) -> Meeting:
    """Return where members meet, each with that key."""
    keys = {} if key is None else {"ipc": SecretStr(key)}
    return Meeting(str(folder), dict.fromkeys("abc", keys))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "m"
    made.mkdir(mode=0o700)
    return made


@pytest.fixture
def members(folder: Path) -> Iterator[Pair]:
    a, b = (made(CONFIG, name, at(folder)) for name in NAMES)
    with opened(a, b) as (at_a, at_b):
        yield Pair(a, b, at_a, at_b, at(folder))


def answer(*members: IpcTransport) -> None:
    """Check that two members answer one another."""
    for own, other in (members, members[::-1]):
        reply = own.exchange(other.name, [b"", b"?"], PATIENCE)
        assert reply is not None
        assert [bytes(each) for each in reply] == [b"?"]


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
    hasty, why = IpcTransportConfig(rendezvous_timeout=1), "does not know this job's key"
    expected: list[tuple[Any, ...]] = [
        (made(hasty, "a", at(folder)), CallTimeoutError, r"the arrival of b"),
        (made(hasty, "b", at(folder, "x" * 32)), AuthenticationError, why),
    ]
    in_threads(2, lambda n: does_not_open(*expected[n]))


@pytest.mark.parametrize("given", ["", "missing", "open", "file"])
def test_where_members_meet_is_checked(tmp_path: Path, given: str) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    (tmp_path / "file").touch(mode=0o700)
    config = IpcTransportConfig(directory=tmp_path / given if given else None)
    does_not_open(made(config, "a", at("")), ConfigError, r"transport\.directory")


def test_without_a_key_nothing_opens(folder: Path) -> None:
    transport = made(CONFIG, "a", at(folder, None))
    does_not_open(transport, ConfigError, r"transport\.key: .*pparallel\.launch")


def test_members_started_by_hand_meet_by_their_config(folder: Path) -> None:
    config = IpcTransportConfig(directory=folder, key=SecretStr(KEY))
    a, b = (made(config, name, at("", None)) for name in NAMES)
    with opened(a, b):
        answer(a, b)
    assert list(folder.iterdir()) == []


def test_a_name_that_lives_is_not_given_twice(folder: Path, members: Pair) -> None:
    again = made(CONFIG, "b", at(folder))
    does_not_open(again, PparallelError, "another process is member 'b' already")
    answer(*members[:2])


def test_a_stranger_with_the_key_and_a_name_that_is_no_members(folder: Path, members: Pair) -> None:
    strange = made(CONFIG, "c", at(folder), ("a", "c"))
    (folder / "1").rename(folder / "elsewhere")  # or it would find its place taken
    does_not_open(strange, PeerLostError, "'c' is no member of this job; its members: a, b")
    (folder / "elsewhere").rename(folder / "1")
    answer(*members[:2])


# -- the handshake ----------------------------------------------------------------------------


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


def hello(name: str) -> Hello:
    return Hello(name, os.urandom(16), ProcessId.here())


def caller_of(name: str) -> End:
    return End(outbound(hello("b"), KEY.encode(), os.getpid(), name))


def called(name: str = "a", key: str = KEY) -> End:
    return End(inbound(hello(name), key.encode(), os.getpid(), lambda _: None))


def test_what_is_proved_is_bound_to_what_was_said() -> None:
    caller, there = caller_of("a"), called()
    challenge, nobody = there.take(caller.first)
    assert nobody is None
    proof, nobody = caller.take(challenge)
    assert nobody is None
    welcome, who = there.take(proof)
    assert who is not None
    assert who.name == "b"
    _, first = caller.take(welcome)
    assert first is not None
    assert first.name == "a"
    for replay in (proof, bytes(len(proof)), challenge[-32:], b"", None):
        other = called()
        answer, _ = other.take(caller_of("a").first)
        with pytest.raises(AuthenticationError):
            other.take(answer[-32:] if replay is None else replay)  # its own, reflected


@pytest.mark.parametrize(
    ("there", "error"),
    [(called(key="another key"), AuthenticationError), (called("c"), RefusedError)],
)
def test_who_answers_must_know_the_key_and_be_who_was_called(
    there: End, error: type[Exception]
) -> None:
    caller = caller_of("a")
    challenge, _ = there.take(caller.first)
    with pytest.raises(error):
        caller.take(challenge)


# -- strangers --------------------------------------------------------------------------------


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
    members: Pair,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    a, b = members[:2]
    for _ in range(2):  # the first call of a connection has no lane yet
        answer(a, b)
    process = psutil.Process()
    descriptors, threads = process.num_fds(), process.num_threads()
    with ExitStack() as stack:
        with nothing_is_unpickled(monkeypatch, marshal, messages):
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
        answer(a, b)
    until(lambda: process.num_fds() <= descriptors, "descriptors of strangers are left")
    assert process.num_threads() <= threads
    assert KEY not in caplog.text
    answer(a, b)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(min_size=1, max_size=3000), min_size=1, max_size=3))
def test_strangers_who_say_anything(folder: Path, members: Pair, said: list[bytes]) -> None:
    with stranger(folder) as sock:
        try:
            for each in said:
                sock.send(each)
        except (BrokenPipeError, ConnectionResetError):
            pass
        heard = hear(sock)
    assert heard.startswith(b"-")
    assert KEY.encode() not in heard
    answer(*members[:2])


def test_who_says_nothing_is_turned_away(
    folder: Path, members: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "PATIENCE", 0.05)
    with stranger(folder) as sock:
        assert b"did not prove who it is within 0.05 s" in hear(sock)
    answer(*members[:2])


def test_more_strangers_than_are_let_wait(
    folder: Path, members: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "STRANGERS", 4)
    monkeypatch.setattr(listener, "PATIENCE", 0.5)
    with ExitStack() as stack:
        waiting = [stack.enter_context(stranger(folder, 1)) for _ in range(7)]
        listening = members.b._listener
        until(lambda: len(listening._strangers) >= 4, "nobody came in")
        assert len(listening._strangers) == 4
        members.a._peers["b"].connection = None  # as of members that have not met
        answer(*members[:2])  # the connection has to be let in behind them
        for each in waiting:
            assert hear(each).startswith(b"-")
