"""How the members of a world find one another, and what they are told when they do not."""

from __future__ import annotations

import errno
import json
import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any

import compat_distributed_programs as programs
import pytest
from compat_distributed_crew import Error, crew
from compat_distributed_programs import SIZE
from free_ports import free_ports
from typing_extensions import override

from pparallel.compat.machin import distributed
from pparallel.compat.machin.distributed import folder, meeting
from pparallel.compat.machin.distributed.cards import Card
from pparallel.errors import CallTimeoutError, ConfigError, PeerLostError
from pparallel.runtime import key_files
from pparallel.testing.patience import PATIENCE
from pparallel_zmq import keys

PLACE = "1-2"
ROUNDS = 100  #: in which one thread removes the folder where another makes it


def outside() -> str:
    """Return an address of this machine that others reach it by; the loopback one, if none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(("203.0.113.1", 9))  # sends nothing
        except OSError:
            return "127.0.0.1"
        return str(asking.getsockname()[0])


OUTSIDE = outside()
needs_network = pytest.mark.skipif(OUTSIDE == "127.0.0.1", reason="this machine has no network")


# -- members that fit together, or do not ---------------------------------------------------------


def test_members_come_in_any_order() -> None:
    with crew() as members:
        members.join([2, 1, 0])
        assert [members.outcome(number) for number in range(SIZE)] == ["m2", "m1", "m0"]
        members.all(programs.stop)


DIFFERING: list[tuple[dict[str, Any], str]] = [  # whoever of two comes first
    ({"rank": 1, "name": "m9"}, "'m[19]' and 'm[19]' both say that they are rank 1"),
    ({"rank": 2, "name": "m1"}, "ranks [12] and [12] are both called 'm1'"),
    ({"rank": 2, "size": 4}, "world_size is the same .*: rank 2 .'m2'. says 4"),
    ({"rank": 2, "transport": "ipc"}, "PPARALLEL_MACHIN_TRANSPORT is the same in all"),
]


def test_members_that_do_not_fit_together() -> None:
    """Every one of them is told what is wrong."""
    with crew() as members:
        for differing, problem in DIFFERING:
            ports = free_ports()
            members.start(0, programs.join, 0, ports)
            members.start(1, programs.join, 1, ports)
            members.start(2, programs.join_differently, ports, **differing)
            for number in range(SIZE):
                with pytest.raises(Error, match=f"ConfigError: .*{problem}"):
                    members.outcome(number)


def test_who_is_missing_is_named() -> None:
    with crew(2) as members:
        members.all(programs.add, 1)  # both are there
        members.join([0, 1], dist_timeout=2.0)
        for number in range(2):
            error = members.error(number)
            assert error == ("CallTimeoutError: the arrival of rank 2 was not answered within 2 s")


def test_rank_0_is_missing() -> None:
    with crew(1) as members:
        members.join([1], dist_timeout=0.2)
        assert "the arrival of rank 0 at /" in members.error(0)


def test_a_port_that_is_in_use() -> None:
    with crew(1) as members, socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        for option in ("dist_init_method", "rpc_init_method"):
            members.start(0, programs.join, 0, members.ports, **{option: f"tcp://localhost:{port}"})
            assert members.error(0).startswith(
                f"ConfigError: {option}: port {port} of 127.0.0.1 is in use, perhaps by another"
            )


# -- rank 0, alone --------------------------------------------------------------------------------


@pytest.fixture
def own_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # pytest's own are too long for a socket
        monkeypatch.setattr(tempfile, "tempdir", short)
        yield Path(short) / f"pparallel-machin-{os.geteuid()}"


@pytest.fixture
def reception(own_folder: Path) -> Iterator[Future[tuple[str, ...]]]:
    """What rank 0 of three gets to know, while it receives the others."""
    outcome: Future[tuple[str, ...]] = Future()
    listening = threading.Event()

    def receive() -> None:
        try:
            with meeting.receiving(Card("m0", 0, SIZE, "zmq"), PLACE, PATIENCE) as found:
                listening.set()
                names = found.names()
                found.tell(names, "there", {})
                outcome.set_result(names)
        except BaseException as error:  # noqa: BLE001 - the test is told
            outcome.set_exception(error)

    thread = threading.Thread(target=receive)
    thread.start()
    listening.wait(PATIENCE)
    yield outcome
    thread.join()
    assert not own_folder.exists()


def knock(rank: int, said: bytes | None = None) -> socket.socket:
    sock = folder.connect(PLACE)
    assert sock is not None
    sock.settimeout(PATIENCE)
    sock.sendall(Card(f"m{rank}", rank, SIZE, "zmq").written() if said is None else said)
    return sock


def heard(sock: socket.socket) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(sock.makefile("rb").readline())
    return found


def test_a_member_that_dies_meanwhile(
    reception: Future[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for it: rank 0 knows, and tells the others."""
    monkeypatch.setattr(meeting, "GRACE", 0.1)
    one = knock(1)
    assert heard(one) == {"here": [0, 1]}
    one.close()
    with pytest.raises(PeerLostError, match="'m1' went away while it waited for rank 2"):
        reception.result(PATIENCE)


def test_rank_0_that_dies_meanwhile(own_folder: Path) -> None:
    with folder.listening(PLACE) as door:
        told: Future[object] = Future()

        def join() -> None:
            try:
                meeting.join(Card("m1", 1, SIZE, "zmq"), PLACE, PATIENCE)
            except PeerLostError as error:
                told.set_result(str(error))

        thread = threading.Thread(target=join)
        thread.start()
        sock, _ = door.accept()
        sock.recv(1)
        sock.close()
        thread.join()
    assert told.result() == "member 'rank 0' ended before all members had come"


@pytest.mark.parametrize(
    "said", [b"", b"hello\n", b"{}\n", b'{"name": 1}\n', b"[" * 4096, b'{"name": "m1"']
)
def test_strangers_are_passed_by(reception: Future[tuple[str, ...]], said: bytes) -> None:
    with knock(0, said) as stranger:
        if said in (b"", b'{"name": "m1"'):
            stranger.close()
        with knock(1) as one, knock(2) as two:
            assert reception.result(PATIENCE) == ("m0", "m1", "m2")
            for each in (one, two):
                assert b'"names": ["m0", "m1", "m2"]' in each.makefile("rb").read()


class Exhausted(socket.socket):
    """Lets nobody in at first, as where no descriptor is left."""

    errors: list[int]

    @override
    def accept(self) -> tuple[socket.socket, Any]:
        if self.errors:
            number = self.errors.pop()
            raise OSError(number, os.strerror(number))
        return super().accept()


def test_rank_0_rests_while_no_descriptor_is_left(
    own_folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests: list[float] = []
    monkeypatch.setattr(meeting, "time", SimpleNamespace(monotonic=monotonic, sleep=rests.append))
    with folder.listening(PLACE) as listening:
        door = Exhausted(fileno=os.dup(listening.fileno()))
        door.errors = [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ECONNABORTED]
        me = Card("m0", 0, SIZE, "zmq")
        with door, meeting.Reception(me, door, PATIENCE) as reception, knock(1), knock(2):
            assert reception.names() == ("m0", "m1", "m2")
    assert len(rests) == 3
    assert caplog.text.count("no member can be let into the world for now") == 1


def test_what_members_meet_by_is_not_inherited(reception: Future[tuple[str, ...]]) -> None:
    with knock(1) as one:
        one.recv(1)  # it is let in
        reader, writer = os.pipe()
        if not (pid := os.fork()):
            os.write(writer, str(_own_sockets()).encode())
            os._exit(0)
        os.close(writer)
        with open(reader, "rb") as said:
            assert said.read() == b"[]"
        os.waitpid(pid, 0)
        with knock(2):
            reception.result(PATIENCE)


def _own_sockets() -> list[int]:
    """Return the descriptors that are sockets at the place of the meeting."""
    found = []
    for each in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError), socket.socket(fileno=os.dup(each)) as sock:
            if str(sock.getsockname()).endswith(PLACE):
                found.append(each)
    return found


def test_two_that_are_rank_0(reception: Future[tuple[str, ...]]) -> None:
    with (
        pytest.raises(ConfigError, match=rf"process {os.getpid()} is rank 0 .* another port"),
        folder.listening(PLACE),
    ):
        pass
    with knock(1), knock(2):
        reception.result(PATIENCE)


def test_what_a_dead_process_has_left_is_replaced(own_folder: Path) -> None:
    own_folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(own_folder / PLACE))
    assert folder.connect(PLACE) is None
    with folder.listening(PLACE) as door, knock(1) as one:
        with door.accept()[0] as sock:
            assert Card.read(sock.recv(4096)) == Card("m1", 1, SIZE, "zmq")
        assert one.recv(1) == b""
    assert not own_folder.exists()


def test_worlds_that_come_and_go_in_one_folder(own_folder: Path) -> None:
    def come_and_go(name: str) -> None:
        for _ in range(ROUNDS):
            with folder.listening(name):
                pass

    with ThreadPoolExecutor() as threads:
        for done in [threads.submit(come_and_go, f"{PLACE}-{number}") for number in range(3)]:
            done.result(PATIENCE)
    assert not own_folder.exists()


def test_a_folder_that_is_not_private(own_folder: Path) -> None:
    own_folder.mkdir(mode=0o755)
    with pytest.raises(ConfigError, match="is not this user's alone"), folder.listening(PLACE):
        pass
    with pytest.raises(ConfigError, match="is not this user's alone"):
        meeting.join(Card("m1", 1, SIZE, "zmq"), PLACE, PATIENCE)


def test_a_member_waits_no_longer_than_it_says(own_folder: Path) -> None:
    with folder.listening(PLACE) as door:
        with pytest.raises(CallTimeoutError, match="the arrival of rank 2 was not"):
            meeting.join(Card("m1", 1, SIZE, "zmq"), PLACE, 0.1)
        door.accept()[0].close()


# -- several machines -----------------------------------------------------------------------------


@needs_network
def test_over_the_network_without_keys() -> None:
    with crew(PPARALLEL_MACHIN_ALLOW_INSECURE="1") as members:
        for rank in range(SIZE):
            members.start(rank, programs.come_and_go_far, rank, members.ports, OUTSIDE)
        assert [members.outcome(rank) for rank in range(SIZE)] == [f"m{each}" for each in range(3)]


@needs_network
def test_over_the_network_with_keys(tmp_path: Path) -> None:
    for name, own in keys.fresh(["m0", "m1", "m2"]).items():
        key_files.write(tmp_path / name, name, own)
    with crew() as members:
        for rank in range(SIZE):
            file = str(tmp_path / f"m{rank}")
            members.start(rank, programs.come_and_go_far, rank, members.ports, OUTSIDE, file)
        assert [members.outcome(rank) for rank in range(SIZE)] == [f"m{each}" for each in range(3)]


@needs_network
def test_members_of_the_network_that_do_not_fit_together() -> None:
    with crew(2, PPARALLEL_MACHIN_ALLOW_INSECURE="1") as members:
        where = {
            option: f"tcp://{OUTSIDE}:{port}"
            for option, port in zip(
                ("dist_init_method", "rpc_init_method"), members.ports, strict=True
            )
        }
        members.start(0, programs.join, 0, members.ports, size=2, name="same", **where)
        members.start(1, programs.join, 1, members.ports, size=2, name="same", **where)
        for number in range(2):
            assert "are both called 'same'" in members.error(number)
        members.start(0, programs.join, 0, free_ports(), size=2, **where | {"dist_timeout": 0.5})
        assert "the arrival of rank 1 was not answered" in members.error(0)


@needs_network
@pytest.mark.parametrize(
    ("environment", "options", "problem"),
    [
        ({}, {}, "could run code in every member: write keys .*PPARALLEL_MACHIN_KEYS"),
        ({"PPARALLEL_MACHIN_TRANSPORT": "ipc"}, {}, "PPARALLEL_MACHIN_TRANSPORT=ipc for one"),
        ({"PPARALLEL_MACHIN_TRANSPORT": "torch_rpc"}, {}, "use zmq, which takes keys"),
        (
            {"PPARALLEL_MACHIN_ALLOW_INSECURE": "1"},
            {"rpc_init_method": "tcp://localhost:9101"},
            "rpc_init_method .*cannot: write the same host in both",
        ),
    ],
)
def test_the_network_is_not_entered_unawares(
    environment: dict[str, str],
    options: dict[str, str],
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    where: dict[str, Any] = {
        "dist_init_method": f"tcp://{OUTSIDE}:9100",
        "rpc_init_method": f"tcp://{OUTSIDE}:9101",
    }
    with pytest.raises(ConfigError, match=problem):
        programs.join(0, (0, 0), **{**where, **options})


# -- what a member is told ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"dist_init_method": "file:///tmp/x"}, "dist_init_method: .*write tcp://HOST:PORT"),
        ({"rpc_init_method": "tcp://localhost"}, "rpc_init_method: .*write tcp://HOST:PORT"),
        ({"dist_init_method": "tcp://localhost:99999"}, "write tcp://HOST:PORT"),
        ({"dist_init_method": "tcp://0.0.0.0:9100"}, "by which the others reach rank 0"),
        ({"dist_init_method": "tcp://no.such.host.invalid:9100"}, "there is no host"),
        ({"dist_init_method": "env://"}, "env:// needs MASTER_ADDR and MASTER_PORT"),
        ({"dist_backend": "mpi"}, "dist_backend: 'mpi': .*write gloo"),
        ({"dist_backend": "glo"}, "Did you mean 'gloo'"),
        ({"dist_timeout": -1}, "dist_timeout: -1: give seconds"),
        ({"rpc_timeout": -1}, "rpc_timeout: -1: give seconds"),
        ({"rank": -1}, "rank: nothing says which member this is"),
        ({"size": -1}, "world_size: nothing says which member this is"),
        ({"rank": 3}, "rank 3 of 3 cannot be"),
        ({"size": 0}, "rank 0 of 0 cannot be"),
    ],
)
def test_arguments_that_cannot_be(
    options: dict[str, Any], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match=problem):
        programs.join(**{"rank": 0, "ports": (9100, 9101), **options})
    assert not distributed.is_world_initialized()


def test_a_transport_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PPARALLEL_MACHIN_TRANSPORT", "zqm")
    with pytest.raises(ConfigError, match=r"zmq, ipc, torch_rpc\. Did you mean 'zmq'"):
        programs.join(0, (9100, 9101))


@pytest.mark.parametrize("method", ["tcp", "env"])
def test_ranks_of_torchrun(method: str) -> None:
    with crew() as members:
        for rank in range(SIZE):
            members.start(rank, programs.join_by_environment, rank, members.ports, method)
        for rank in range(SIZE):
            members.outcome(rank)
        members.all(programs.who)
        members.all(programs.stop)
