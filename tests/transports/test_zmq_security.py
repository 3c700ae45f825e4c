"""Who is not a member of the job gets nowhere on ZeroMQ, and its secrets are told to nobody."""

from __future__ import annotations

import json
import logging
import os
import pickle
import secrets
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import dill
import psutil
import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr
from typer.testing import CliRunner
from zmq.utils import z85
from zmq_bytes import connect, curve, garbage, greeting, head, second
from zmq_peer import Asking, Peer, opened, peers, transport

import pparallel
from pparallel.cli import app
from pparallel.errors import AuthenticationError, CallTimeoutError, ConfigError, PeerLostError
from pparallel.interfaces.transport import Meeting
from pparallel.runtime.member import Member
from pparallel.testing.patience import until
from pparallel.testing.threads import in_threads
from pparallel_zmq import ZmqTransportConfig, messages
from pparallel_zmq.address import Address
from pparallel_zmq.keys import fresh
from pparallel_zmq.transport import ZmqTransport

NAMES = ["m0", "m1"]
PLACES = ["ipc", "tcp://127.0.0.1:0"]
LIMITS = messages.Limits(99, 9999, 9999)


class Job:
    """Two members, the first of which runs in this process; counts what its handler is asked."""

    def __init__(self, met: Meeting, own: Asking, peer: Peer) -> None:
        self.met, self.own, self.peer = met, own, peer
        self.asked = own.asked

    def answers(self) -> None:
        """Check that the members still talk."""
        assert self.own.call("m1", [b"here"], 10)
        assert self.peer.call("m0", "there") == ["m1", "there"]


@contextmanager
def job(place: str) -> Iterator[Job]:
    with (
        ZmqTransport.meeting(ZmqTransportConfig(address=place), NAMES) as met,
        peers(NAMES[1:], NAMES, met) as (peer,),
        opened(transport("m0", NAMES, met, liveness_bound=5.0)) as asking,
    ):
        assert peer.opened() == "open"
        yield Job(met, asking, peer)


@pytest.fixture(params=PLACES)
def members(request: pytest.FixtureRequest) -> Iterator[Job]:
    with job(request.param) as found:
        yield found


@pytest.fixture
def on_tcp() -> Iterator[Job]:
    with job(PLACES[1]) as found:
        yield found


@contextmanager
def client(address: str, **options: object) -> Iterator[tuple[zmq.Socket[bytes], list[str]]]:
    """Connect a socket of nobody's; what became of its connections is listed."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as own:
        own.linger = 0
        for name, value in options.items():
            setattr(own, name, value)
        happened: list[str] = []
        with own.get_monitor_socket() as monitor:
            own.connect(address)
            with suppress(zmq.Again):  # who is refused before it sends has nowhere to send to
                hello = messages.pack([b"x" * 90], LIMITS, messages.HELLO)[0][0]
                own.send(hello, zmq.NOBLOCK)
                asked = messages.pack([b"?", b"1", b"let me in"], LIMITS)[0][0]
                own.send(asked, zmq.NOBLOCK)
            end = time.monotonic() + 1.5
            while time.monotonic() < end and not {"AUTH", "SUCCEEDED"} & {*happened}:
                if monitor.poll(50):
                    event = zmq.Event(struct.unpack("=hi", monitor.recv_multipart()[0])[0])
                    happened.append(str(event.name).rpartition("_")[2])
            assert not own.poll(100), "it was answered"
            own.disable_monitor()
        yield own, happened


def are_refused(address: str, clients: list[dict[str, object]]) -> list[bool]:
    """Connect sockets with these options, all at once; return which of them did not get in."""

    def is_refused(number: int) -> bool:
        with client(address, **clients[number]) as (_, happened):
            return "SUCCEEDED" not in happened

    return in_threads(len(clients), is_refused)


def test_wrong_keys_are_refused(members: Job) -> None:
    stranger = dict(zip(("curve_publickey", "curve_secretkey"), zmq.curve_keypair(), strict=True))
    before = len(members.asked)
    wrong = {"curve_serverkey": zmq.curve_keypair()[0]}
    clients: list[dict[str, object]] = [
        {},  # none at all
        {**curve(members.met), **stranger},  # one that nobody knows
        {**curve(members.met), **wrong},  # of another server
        {"plain_username": b"m1", "plain_password": b"x"},
        {"routing_id": b"m1\0" + bytes(16)},
    ]

    assert are_refused(members.met.address, clients) == [True] * len(clients)
    members.answers()
    assert members.asked[before:] == ["m1"], "who was refused was heard"


def test_the_directory_of_unix_sockets_is_the_users_own() -> None:
    with ZmqTransport.meeting(ZmqTransportConfig(), NAMES) as met:
        directory = Path(met.address.removeprefix("ipc://")).parent
        assert directory.stat().st_mode & 0o777 == 0o700


def test_a_member_that_does_not_prove_itself_is_sent_nothing() -> None:
    """Whoever answers where the first member is met and has no key of its."""
    with (
        ZmqTransport.meeting(ZmqTransportConfig(address=PLACES[1]), NAMES) as met,
        zmq.Context() as context,
        context.socket(zmq.ROUTER) as liar,
    ):
        liar.linger = 0
        liar.curve_server = True
        liar.curve_secretkey = zmq.curve_keypair()[1]
        liar.bind(met.address)
        own = transport("m1", NAMES, met, rendezvous_timeout=1.0)
        with pytest.raises(CallTimeoutError, match="hello to the first member"), opened(own):
            pass
        assert not liar.poll(0), "it was sent something"


@pytest.mark.parametrize("place", PLACES)
def test_a_known_key_under_anothers_name_is_refused(place: str) -> None:
    names = ["m0", "m1", "m2"]
    with ZmqTransport.meeting(ZmqTransportConfig(address=place), names) as met:
        own = transport("m0", names, met, rendezvous_timeout=1.0)
        keys = dict(met.keys["m2"])
        # m2 says that it is m1: its keys are its own, only the names are changed
        keys |= {"public:m1": keys["public:m2"], "public:m2": keys["public:m1"]}
        liar = transport("m1", names, Meeting(met.address, {"m1": keys}), rendezvous_timeout=1.0)
        with ThreadOpened(own) as first:
            with pytest.raises((AuthenticationError, PeerLostError)) as caught, opened(liar):
                pass
            assert "m1" in str(first.error())
        shown = f"{caught.value} {first.error()}"
        assert not any(each.get_secret_value() in shown for each in keys.values())


class ThreadOpened:
    """Opens a transport in a thread, and gives the error of that."""

    def __init__(self, own: ZmqTransport) -> None:
        self._own, self._pool = own, ThreadPoolExecutor(1)

    def __enter__(self) -> ThreadOpened:
        self._future = self._pool.submit(self._own.open, Asking(self._own))
        return self

    def error(self) -> BaseException | None:
        return self._future.exception(20)

    def __exit__(self, *_: object) -> None:
        self._own.close()
        self._pool.shutdown()


# -- garbage ------------------------------------------------------------------------------------


@contextmanager
def nothing_is_unpickled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(*_: object, **__: object) -> object:
        raise AssertionError("something was unpickled")

    with monkeypatch.context() as patched:
        for module, name in ((pickle, "loads"), (pickle, "load"), (dill, "loads")):
            patched.setattr(module, name, refuse)
        yield


def growth(process: psutil.Process, before: tuple[int, int]) -> tuple[int, int]:
    return process.memory_info().rss - before[0], process.num_fds() - before[1]


def test_connections_that_send_garbage(members: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    me = psutil.Process()
    asked = len(members.asked)
    members.answers()
    before = me.memory_info().rss, me.num_fds()

    @settings(max_examples=20, suppress_health_check=list(HealthCheck))
    @given(sent=st.lists(garbage, min_size=1, max_size=10))
    def send(sent: list[bytes]) -> None:
        for each in sent:
            with connect(members.met.address) as own:
                try:
                    own.sendall(each)
                except OSError:
                    continue

    with nothing_is_unpickled(monkeypatch):
        send()
        with ExitStack() as crowd:
            for number in range(200):
                own = crowd.enter_context(connect(members.met.address))
                own.sendall([greeting(b"CURVE"), secrets.token_bytes(100), b""][number % 3])
            members.answers()
        members.answers()
    assert members.asked[asked:] == ["m1"] * 3, "somebody else was heard"
    until(lambda: growth(me, before)[1] < 20, "descriptors were kept")
    assert growth(me, before)[0] < 30 * 2**20


def test_messages_of_a_member_that_are_none(on_tcp: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has the keys, and sends what no member would."""
    me = psutil.Process()
    with second(on_tcp.met) as own:
        sent: list[list[bytes]] = []

        @settings(max_examples=100, suppress_health_check=list(HealthCheck))
        @given(parts=st.lists(st.one_of(head, st.binary(max_size=100)), min_size=1, max_size=4))
        def send(parts: list[bytes]) -> None:
            own.send_multipart(parts)
            sent.append(parts)

        with nothing_is_unpickled(monkeypatch):
            send()
            on_tcp.answers()
            # Once more without what makes them up, which takes more memory than they do.
            before = me.memory_info().rss, me.num_fds()
            for parts in sent:
                own.send_multipart(parts)
            on_tcp.answers()
            grown, _ = growth(me, before)
    assert grown < 30 * 2**20


def test_what_is_too_large_is_refused_before_it_is_there(on_tcp: Job) -> None:
    me = psutil.Process()
    on_tcp.answers()
    before = me.memory_info().rss
    with second(on_tcp.met) as own:
        for number in range(50):  # each announces eight gigabytes, and one more byte
            head = struct.pack("<B3xII", messages.FRAMES, 1, number)
            own.send(head + struct.pack("<Q", (8 * 2**30 + 1) << 1))
        on_tcp.answers()
        own.send(bytes(5 * 2**20))  # more than a piece: libzmq ends the connection
        on_tcp.answers()
    assert me.memory_info().rss - before < 40 * 2**20


# -- secrets ------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", PLACES)
def test_secrets_are_told_to_nobody(place: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with ZmqTransport.meeting(ZmqTransportConfig(address=place), NAMES) as met:
        hidden = {
            each.get_secret_value()
            for keys in met.keys.values()
            for name, each in keys.items()
            if not name.startswith("public:")
        }
        assert len(hidden) == 2
        with peers(NAMES[1:], NAMES, met) as (peer,):
            own = transport("m0", NAMES, met)
            with opened(own) as asking:
                assert peer.opened() == "open"
                environment = asking.call("m1", [b"environment"], 5)
                config = ZmqTransportConfig(keys=dict(met.keys["m0"]))
                member = Member("m0", 0, 0, 2, tuple(NAMES), met.address, met.keys["m0"])
                told = [repr(config), str(config), config.model_dump_json(), repr(member)]
                told += [repr(met), repr(vars(own)), caplog.text, bytes(environment[0]).decode()]
                for process in (psutil.Process(), psutil.Process(peer.pid)):
                    told += [repr(process.cmdline()), repr(process.environ())]
    if place == PLACES[0]:
        told += [CliRunner().invoke(app, [command]).output for command in ("schema", "doctor")]
    for text in told:
        assert not [each for each in hidden if each in text]


def test_it_opens_only_with_keys() -> None:
    for place in ("tcp://127.0.0.1:5999", "ipc:///tmp/nowhere/m"):
        own = transport("m0", NAMES, Meeting(place))
        with pytest.raises(ConfigError, match=r"pparallel keys new.*allow_insecure: true"):
            own.open(Asking(own))
        own.close()


def test_it_opens_without_where_that_is_allowed() -> None:
    def work(rt: pparallel.Runtime) -> list[str]:
        rt.group().barrier(20)
        return rt.group().rpc_sync(1 - rt.rank, sorted, args=(["b", "a"],))

    for place in PLACES:
        config = {"backend": "zmq", "address": place, "allow_insecure": True}
        assert pparallel.launch({"members": 2, "transport": config}, work) == [["a", "b"]] * 2


def test_key_files(tmp_path: Path) -> None:
    run = CliRunner().invoke
    made = run(app, ["keys", "new", str(tmp_path), "--members", "m0, m1", "--json"])
    assert made.exit_code == 0, made.output
    files = json.loads(made.stdout)["files"]
    assert files == {name: str(tmp_path / f"{name}.keys") for name in NAMES}
    for each in files.values():
        assert os.stat(each).st_mode & 0o777 == 0o600
    again = run(app, ["keys", "new", str(tmp_path), "--members", "m1,m2"])
    assert (again.exit_code, "is there already" in again.output) == (2, True)
    assert not (tmp_path / "m2.keys").exists()
    place = f"ipc://{tmp_path}/private/meet"
    owned = [transport(name, NAMES, Meeting(""), address=place, keys=files[name]) for name in NAMES]
    with ThreadOpened(owned[1]), opened(owned[0]) as asking:
        assert asking.call("m1", [b"by hand"], 5)
    wrong = transport("m0", NAMES, Meeting(place), keys=files["m1"])
    with pytest.raises(ConfigError, match="keys of member 'm1'"):
        wrong.open(Asking(wrong))
    Path(files["m0"]).chmod(0o644)
    open_to_all = transport("m0", NAMES, Meeting(place), keys=files["m0"])
    with pytest.raises(ConfigError, match="chmod 600"):
        open_to_all.open(Asking(open_to_all))


def test_keys_new_says_what_is_wrong(tmp_path: Path) -> None:
    for words, message in (
        (["--members", "one"], "two or more"),
        (["--members", "a,a"], "same name"),
        (["--members", "a,../b"], "name of a file"),
        (["--members", "a,b", "--transport", "local"], "no keys"),
        (["--members", "a,b", "--transport", "nothing"], "nothing"),
    ):
        found = CliRunner().invoke(app, ["keys", "new", str(tmp_path / "keys"), *words])
        assert (found.exit_code, message in found.output) == (2, True), found.output
    assert not (tmp_path / "keys").exists()


def test_bad_keys_are_not_shown() -> None:
    keys = {name: each.get_secret_value() for name, each in fresh(NAMES)["m0"].items()}
    for changed in ({"secret": "no key at all"}, {"secret": keys["secret"][:39]}):
        own = transport("m0", NAMES, Meeting("ipc:///tmp/x/y", {}), keys={**keys, **changed})
        with pytest.raises(ConfigError) as caught:
            own.open(Asking(own))
        assert keys["secret"][:39] not in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        ZmqTransportConfig(keys={"secret": [keys["secret"]]})
    assert keys["secret"] not in str(caught.value)
    assert z85.decode(keys["secret"].encode())
    assert keys["secret"] not in repr(SecretStr(keys["secret"]))


def test_a_directory_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with ZmqTransport.meeting(ZmqTransportConfig(), NAMES) as met:
        place = Meeting(f"ipc://{tmp_path}/m", met.keys)
        own = transport("m0", NAMES, place)
        with pytest.raises(ConfigError, match="chmod 700"):
            own.open(Asking(own))
        own.close()


@pytest.mark.parametrize(
    "address",
    ["tcp://0.0.0.0:5", "tcp://*:5", "tcp://host", "tcp://host:x", "udp://a:1", "ipc://relative"],
)
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(ConfigError, match="write"):
        Address.parse(address)
