"""Who is not a member of the job gets nowhere on ZeroMQ, and its secrets are told to nobody."""

from __future__ import annotations

import json
import os
import secrets
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from member_pairs import does_not_open, nothing_is_unpickled
from pydantic import SecretStr
from typer.testing import CliRunner
from zmq_bytes import connect, curve, garbage, greeting, head, second
from zmq_peer import PLACES, Job, job, meeting, opened, transport

import pparallel
from pparallel.cli import app
from pparallel.errors import (
    AuthenticationError,
    CallTimeoutError,
    ConfigError,
    PeerLostError,
)
from pparallel.interfaces.transport import Meeting
from pparallel.testing.patience import PATIENCE, until
from pparallel.testing.threads import in_threads
from pparallel_zmq import ZmqTransportConfig, messages
from pparallel_zmq.address import Address
from pparallel_zmq.keys import fresh

NAMES = ["m0", "m1"]
TCP = PLACES[1]
LIMITS = messages.Limits(99, 9999, 9999)


@pytest.fixture(params=PLACES)
def members(request: pytest.FixtureRequest) -> Iterator[Job]:
    with job(request.param, liveness_bound=5.0) as found:
        yield found


@pytest.fixture
def on_tcp() -> Iterator[Job]:
    with job(TCP, liveness_bound=5.0) as found:
        yield found


# -- who may come in ----------------------------------------------------------------------------


def is_refused(address: str, options: dict[str, object]) -> bool:
    """Return whether a socket with such options does not get in; check that it is not answered."""
    happened: list[str] = []
    with zmq.Context() as context, context.socket(zmq.DEALER) as own:
        own.linger = 0
        for name, value in options.items():
            setattr(own, name, value)
        with own.get_monitor_socket() as monitor:
            own.connect(address)
            with suppress(zmq.Again):  # who is refused before it sends has nowhere to send to
                for frames, kind in ([b"x" * 90], messages.HELLO), ([b"?", b"1"], messages.FRAMES):
                    own.send(messages.pack(frames, LIMITS, kind)[0][0], zmq.NOBLOCK)
            end = time.monotonic() + 1.5
            while time.monotonic() < end and not {"AUTH", "SUCCEEDED"} & {*happened}:
                if monitor.poll(50):
                    event = zmq.Event(struct.unpack("=hi", monitor.recv_multipart()[0])[0])
                    happened.append(str(event.name).rpartition("_")[2])
            assert not own.poll(100), "it was answered"
            own.disable_monitor()
    return "SUCCEEDED" not in happened


def test_wrong_keys_are_refused(members: Job) -> None:
    stranger = dict(zip(("curve_publickey", "curve_secretkey"), zmq.curve_keypair(), strict=True))
    before = len(members.own.asked)
    clients: list[dict[str, object]] = [
        {},  # none at all
        {**curve(members.met), **stranger},  # one that nobody knows
        {**curve(members.met), "curve_serverkey": zmq.curve_keypair()[0]},  # of another server
        {"plain_username": b"m1", "plain_password": b"x"},
        {"routing_id": b"m1\0" + bytes(16)},
    ]
    address = members.met.address
    assert all(in_threads(len(clients), lambda number: is_refused(address, clients[number])))
    members.answers()
    assert members.own.asked[before:] == ["m1"], "who was refused was heard"


def test_a_member_that_does_not_prove_itself_is_sent_nothing() -> None:
    """Whoever answers where the first member is met and has no key of its."""
    with meeting(NAMES, TCP) as met, zmq.Context() as context, context.socket(zmq.ROUTER) as liar:
        liar.linger = 0
        liar.curve_server = True
        liar.curve_secretkey = zmq.curve_keypair()[1]
        liar.bind(met.address)
        own = transport("m1", NAMES, met, rendezvous_timeout=1.0)
        does_not_open(own, CallTimeoutError, "hello to the first member")
        assert not liar.poll(0), "it was sent something"


@pytest.mark.parametrize("place", PLACES)
def test_a_known_key_under_anothers_name_is_refused(place: str) -> None:
    names = ["m0", "m1", "m2"]
    with meeting(names, place) as met:
        keys = dict(met.keys["m2"])
        # m2 says that it is m1: its keys are its own, only the names are changed
        keys |= {"public:m1": keys["public:m2"], "public:m2": keys["public:m1"]}
        own = transport("m0", names, met, rendezvous_timeout=1.0)
        liar = transport("m1", names, Meeting(met.address, {"m1": keys}), rendezvous_timeout=1.0)
        refused = AuthenticationError, PeerLostError
        expected: list[tuple[Any, ...]] = [(own, CallTimeoutError, "m1"), (liar, refused)]
        shown = in_threads(2, lambda number: does_not_open(*expected[number]))
        assert not any(each.get_secret_value() in str(shown) for each in keys.values())


# -- garbage ------------------------------------------------------------------------------------


ME = psutil.Process()
MB = 2**20


def memory() -> int:
    """Return the bytes that this process has in memory."""
    found: int = ME.memory_info().rss
    return found


def test_connections_that_send_garbage(members: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = len(members.own.asked)
    members.answers()
    before, descriptors = memory(), ME.num_fds()

    @settings(max_examples=20, suppress_health_check=list(HealthCheck))
    @given(sent=st.lists(garbage, min_size=1, max_size=10))
    def send(sent: list[bytes]) -> None:
        for each in sent:
            with connect(members.met.address) as own, suppress(OSError):
                own.sendall(each)

    with nothing_is_unpickled(monkeypatch):
        send()
        with ExitStack() as crowd:
            for number in range(200):
                own = crowd.enter_context(connect(members.met.address))
                own.sendall([greeting(b"CURVE"), secrets.token_bytes(100), b""][number % 3])
            members.answers()
        members.answers()
    assert members.own.asked[asked:] == ["m1"] * 3, "somebody else was heard"
    until(lambda: ME.num_fds() < descriptors + 20, "descriptors were kept")
    assert memory() - before < 30 * MB


def test_messages_of_a_member_that_are_none(on_tcp: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has the keys, and sends what no member would."""
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
            before = memory()
            for parts in sent:
                own.send_multipart(parts)
            on_tcp.answers()
            assert memory() - before < 30 * MB


def test_what_is_too_large_is_refused_before_it_is_there(on_tcp: Job) -> None:
    on_tcp.answers()
    before = memory()
    with second(on_tcp.met) as own:
        for number in range(50):  # each announces eight gigabytes, and one more byte
            head = struct.pack("<B3xII", messages.FRAMES, 1, number)
            own.send(head + struct.pack("<Q", (8 * 2**30 + 1) << 1))
        on_tcp.answers()
        own.send(bytes(5 * MB))  # more than a piece: libzmq ends the connection
        on_tcp.answers()
    assert memory() - before < 40 * MB


# -- secrets ------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["tcp://127.0.0.1:5999", "ipc:///tmp/nowhere/m"])
def test_it_opens_only_with_keys(place: str) -> None:
    own = transport("m0", NAMES, Meeting(place))
    does_not_open(own, ConfigError, r"pparallel keys new.*allow_insecure: true")


@pytest.mark.parametrize("place", PLACES)
def test_it_opens_without_where_that_is_allowed(place: str) -> None:
    def work(rt: pparallel.Runtime) -> list[str]:
        rt.group().barrier(20)
        return rt.group().rpc_sync(1 - rt.rank, sorted, args=(["b", "a"],))

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

    is_open, is_over = threading.Event(), threading.Event()

    def meet(number: int) -> None:
        with opened(owned[number]) as asking:
            if number == 0:
                assert is_open.wait(PATIENCE)  # or the other one might see this one leave first
                assert asking.call("m1", [b"by hand"], 5)
                is_over.set()
            is_open.set()
            assert is_over.wait(PATIENCE)

    in_threads(2, meet)
    wrong = transport("m0", NAMES, Meeting(place), keys=files["m1"])
    does_not_open(wrong, ConfigError, "keys of member 'm1'")
    Path(files["m0"]).chmod(0o644)
    open_to_all = transport("m0", NAMES, Meeting(place), keys=files["m0"])
    does_not_open(open_to_all, ConfigError, "chmod 600")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--members", "one"], "two or more"),
        (["--members", "a,a"], "same name"),
        (["--members", "a,../b"], "name of a file"),
        (["--members", "a,b", "--transport", "local"], "no keys"),
    ],
)
def test_keys_new_says_what_is_wrong(tmp_path: Path, words: list[str], message: str) -> None:
    found = CliRunner().invoke(app, ["keys", "new", str(tmp_path / "keys"), *words])
    assert (found.exit_code, message in found.output) == (2, True), found.output
    assert not (tmp_path / "keys").exists()


def test_bad_keys_are_not_shown() -> None:
    keys = {name: each.get_secret_value() for name, each in fresh(NAMES)["m0"].items()}
    for changed in ({"secret": "no key at all"}, {"secret": keys["secret"][:39]}):
        own = transport("m0", NAMES, Meeting("ipc:///tmp/x/y", {}), keys={**keys, **changed})
        assert keys["secret"][:39] not in does_not_open(own, ConfigError)
    with pytest.raises(ConfigError) as caught:
        ZmqTransportConfig(keys={"secret": [keys["secret"]]})
    assert keys["secret"] not in str(caught.value)
    assert keys["secret"] not in repr(SecretStr(keys["secret"]))


def test_a_directory_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    own = transport("m0", NAMES, Meeting(f"ipc://{tmp_path}/m", fresh(NAMES)))
    does_not_open(own, ConfigError, "chmod 700")
    with meeting(NAMES) as met:
        directory = Path(met.address.removeprefix("ipc://")).parent
        assert directory.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "address",
    ["tcp://0.0.0.0:5", "tcp://*:5", "tcp://host", "tcp://host:x", "udp://a:1", "ipc://relative"],
)
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(ConfigError, match="write"):
        Address.parse(address)
