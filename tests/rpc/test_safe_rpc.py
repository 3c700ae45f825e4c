"""Members whose serializer is ``safe``: only data travels, and only what is registered runs."""

from __future__ import annotations

import contextlib
import itertools
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from typing_extensions import override

import pparallel
from pparallel import Member
from pparallel.errors import (
    CallTimeoutError,
    ClosedError,
    DirectoryError,
    PeerLostError,
    RemoteError,
    SerializationError,
)
from pparallel.interfaces.transport import Frames
from pparallel.runtime import remote_errors
from pparallel.runtime.rpc import RpcGroup, context
from pparallel.runtime.rpc.codec import (
    CALL,
    EXCHANGE,
    FAILED,
    OBJECT,
    PICKLED,
    RESULT,
    SERVICE,
    Codec,
    kind_of,
)
from pparallel.testing.patience import PATIENCE
from pparallel.testing.transport.alone import Received, echo
from pparallel_local import LocalTransportConfig
from pparallel_local.transport import LocalTransport
from pparallel_serializers import SafeSerializerConfig

if TYPE_CHECKING:
    from pparallel import Runtime

ROOT = Path(__file__).resolve().parents[2]

_found: list[str] | None = None  # what was unpickled while a test looks


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if _found is not None and event == "pickle.find_class":
        _found.append(".".join(map(str, arguments)))


sys.addaudithook(_hear)


@pytest.fixture(autouse=True)
def _nothing_is_unpickled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    global _found

    def refuse(*_: object, **__: object) -> object:
        raise AssertionError("pickle was used")

    for name in ("loads", "load", "dumps", "dump"):
        monkeypatch.setattr(pickle, name, refuse)
    _found = []
    yield
    found, _found = _found, None
    assert not found


def safe(members: int | list[str] = 2, **options: object) -> pparallel.RuntimeConfig:
    raw: dict[str, Any] = {"reducer": {"backend": "local"}, **options}
    return pparallel.RuntimeConfig(members=members, serializer=SafeSerializerConfig(), **raw)


class OwnError(Exception):
    pass


def half(value: Any) -> Any:
    if isinstance(value, str):
        raise LookupError("no half of", value)
    if value is None:
        raise OwnError("nothing to halve")
    if value is False:
        raise PeerLostError("somebody", "was halved")
    if value is True:
        return OwnError
    return value / 2


def between(program: Callable[[Runtime, RpcGroup], object]) -> None:
    """Run *program* in the first of two members; the second one has services."""

    def run(rt: Runtime) -> None:
        group = rt.group()
        if rt.rank == 1:
            group.register("half", half)
            group.pair("numbers", {"one": torch.ones(300)})
        group.barrier(PATIENCE)
        if rt.rank == 0:
            program(rt, group)
        group.barrier(PATIENCE)

    pparallel.launch(safe(), run)


def test_registered_services() -> None:
    def program(rt: Runtime, group: RpcGroup) -> None:
        assert group.registered_sync("half", args=(3,)) == 1.5
        tensor = group.registered_async("half", kwargs={"value": torch.ones(300)}).wait()
        assert tensor.tolist() == [0.5] * 300
        assert group.registered_remote("half", args=[8]).to_here() == 4
        assert group.get_paired("numbers").to_here()["one"].sum() == 300
        with pytest.raises(DirectoryError, match="not registered in"):
            group.registered_sync("third", args=(3,))

    between(program)


def test_exceptions() -> None:
    def program(rt: Runtime, group: RpcGroup) -> None:
        with pytest.raises(LookupError) as known:
            group.registered_sync("half", args=("word",))
        assert known.value.args == ("no half of", "word")
        assert isinstance(known.value.__cause__, RemoteError)
        assert "in half" in known.value.__cause__.traceback
        with pytest.raises(PeerLostError, match="'somebody' was halved") as ours:
            group.registered_async("half", args=(False,)).wait()
        assert (ours.value.peer, ours.value.reason) == ("somebody", "was halved")
        with pytest.raises(RemoteError, match="OwnError: nothing to halve") as own:
            group.registered_sync("half", args=(None,))
        assert own.value.type_name.endswith("OwnError")
        assert own.value.member == rt.members[1]
        assert "in half" in own.value.traceback
        with pytest.raises(SerializationError, match="safe takes data only"):
            group.registered_sync("half", args=(True,))

    between(program)


def sent(error: BaseException) -> BaseException:
    """Return what arrives of an exception."""
    serializer = pparallel.build(SafeSerializerConfig())
    return remote_errors.unpack(remote_errors.pack(error, serializer), "m1", serializer)


@pytest.mark.parametrize(
    "error",
    [
        KeyError("k"),
        OSError(2, "not there"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "wrong"),
        DirectoryError("a name"),
        CallTimeoutError("a call", 2.0),
        ClosedError("the job", consequence=True),
        SerializationError("this", "that"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_known_exceptions_keep_their_type(error: Exception) -> None:
    error.add_note("a note")
    found = sent(error)
    assert (type(found), str(found), found.args) == (type(error), str(error), error.args)
    assert vars(found) == vars(error)
    assert isinstance(found.__cause__, RemoteError)


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(2, "not there", "a file"),  # its arguments do not have the file
        ExceptionGroup("several", [KeyError("k")]),
        KeyError(half),
        OwnError("own"),
        SystemExit(3),
    ],
    ids=lambda error: type(error).__name__,
)
def test_others_arrive_as_text(error: BaseException) -> None:
    found = sent(error)
    assert isinstance(found, RemoteError)
    assert found.type_name.endswith(type(error).__name__)
    assert found.message == str(error)


def test_what_cannot_be_sent() -> None:
    def program(rt: Runtime, group: RpcGroup) -> None:
        for call in (group.rpc_sync, group.rpc_async, group.remote):
            with pytest.raises(SerializationError, match=r"^half \(.*registered_sync\(\)"):
                call(1, half, args=(1,))
        ref = group.get_paired("numbers")
        for bad, name in ((ref, "RemoteRef"), (group, "RpcGroup"), (OwnError(), "OwnError")):
            with pytest.raises(SerializationError, match=name) as caught:
                group.registered_sync("half", args=(bad,))
            assert "registered_sync" not in str(caught.value)
        with pytest.raises(SerializationError, match="_call_method"):
            ref.rpc_sync().keys()
        with pytest.raises(SerializationError):
            rt.ordered_server.push("k", half, 1, None)
        assert rt.ordered_server.pull("k") is None

    between(program)


def everything_else(rt: Runtime) -> list[Any]:
    group, server = rt.group(), rt.ordered_server
    group.barrier(PATIENCE)
    if rt.rank < 2:
        pair = rt.group("pair", rt.members[:2])
        pair.pair(f"of {rt.rank}", [rt.rank])
        pair.barrier(PATIENCE)
        assert pair.get_paired(f"of {1 - rt.rank}").to_here() == [1 - rt.rank]
        pair.barrier(PATIENCE)
        pair.destroy()
    if rt.rank == 1:
        assert server.push(("k", 1), {"t": torch.ones(300)}, ("v", 1), None)
        assert server.push(("k", 1), {"t": torch.zeros(300)}, ("v", 2), ("v", 1))
        assert not server.push(("k", 1), 0, 3, 1)
    found = server.wait(("k", 1), ("v", 1), PATIENCE)
    assert found is not None
    group.barrier(PATIENCE)
    assert server.versions(("k", 1)) == [("v", 2)]
    assert server.keys() == [("k", 1)]
    assert server.wait("other", timeout=0.01) is None
    group.barrier(PATIENCE)
    return [found[1], found[0]["t"].sum().item()]


@pytest.mark.parametrize("server", ["memory", "hosted"])
def test_groups_and_ordered_servers(server: str) -> None:
    config = safe(3, ordered_server={"backend": server})
    assert pparallel.launch(config, everything_else) == [[("v", 2), 0.0]] * 3


def test_the_example_trains() -> None:
    config = pparallel.load(ROOT / "examples" / "digits" / "embedded.yaml")
    config = config.model_copy(update={"serializer": SafeSerializerConfig()})
    results = pparallel.launch(config, kwargs={"steps": 100})
    assert results[0]["accuracy"] > 0.8


# -- a hostile peer ---------------------------------------------------------------------------


def pickled(path: Path) -> bytes:
    """Return a pickle that makes a directory; made by hand, for pickle is out of use here."""
    return b"cos\nmkdir\n(V" + str(path).encode() + b"\ntR."


def test_the_pickle_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    global _found
    monkeypatch.undo()
    pickle.loads(pickled(tmp_path / "made"))
    assert (tmp_path / "made").exists()
    assert _found
    _found = []


def send_pickles(rt: Runtime, path: Path) -> None:
    group = rt.group()
    group.barrier(PATIENCE)
    if rt.rank == 0:
        evil, codec, to = pickled(path), Codec(rt.serializer, "m0"), rt.members[1]
        getpid = b"cos\ngetpid\n."
        data: list[bytes | None] = [evil, getpid, None, *map(bytes, rt.serializer.dumps(evil))]
        rests: list[tuple[int, tuple[Any, ...]]] = []
        for flags, body, ref_id in itertools.product(range(8), data, (None, "m0:99")):
            rests.append((CALL, (1, 0.0, flags, ref_id, body, 2)))
        for key, body, count in itertools.product(("half", "ref.fetch"), data, range(2)):
            rests.append((SERVICE, (key, body, count, 2)))
        for status, body in itertools.product(range(5), data):
            rests.append((RESULT, (status, body, 1, 2)))
        heads = [evil + bytes((kind,)) for kind in b"crsx"]
        ids = itertools.count(10_000)  # or they would be those of the calls below
        for (kind, rest), last in itertools.product(rests, b"xcs"):
            item: Any = (kind, next(ids), *rest)
            heads.append(codec.head(item if last == EXCHANGE else [0, item], last))
        for head in heads:
            if head[-1] != EXCHANGE:
                rt.transport.send(to, [head, evil, evil])
                continue
            with contextlib.suppress(PeerLostError):  # the connection of a head that is none ends
                reply = rt.transport.exchange(to, [head, evil, evil], PATIENCE)
                assert reply is None or codec.items(reply[0])[2] == FAILED
    group.barrier(PATIENCE)


def test_what_a_hostile_peer_sends_is_not_unpickled(tmp_path: Path) -> None:
    path = tmp_path / "made"
    assert pparallel.launch(safe(transport={"backend": "ipc"}), send_pickles, [path]) == [None] * 2
    assert not path.exists()


def store_a_pickle(rt: Runtime, path: Path) -> None:
    group = rt.group()
    if rt.rank == 1:
        of_server = RpcGroup(context.endpoint(), "component/ordered_server", rt.members)
        for key, head in (("k", b""), ("flat", b"T" + pickled(path)), ("odd", b"T"), ("?", b"B5")):
            body = (key, 1, None, head, None)
            assert of_server.ask(rt.members[0], "push", body, [pickled(path)], PATIENCE).body
    group.barrier(PATIENCE)
    for read in (rt.ordered_server.pull, rt.ordered_server.wait):
        for key in ("k", "flat", "odd", "?"):
            with pytest.raises(SerializationError):
                read(key)
    assert rt.ordered_server.versions("k") == [1]
    group.barrier(PATIENCE)


def test_what_a_hostile_peer_stores_is_not_unpickled(tmp_path: Path) -> None:
    path = tmp_path / "made"
    config = safe(3, ordered_server={"backend": "hosted"})
    assert pparallel.launch(config, store_a_pickle, [path]) == [None] * 3
    assert not path.exists()


def hostile_first_member(answer: Callable[[int, int], Frames]) -> BaseException:
    """Return what a member meets whose first member gives *answer* to everything.

    It is called with the number of a request and the kind of what answers it.
    """
    names, codec = ("m0", "m1"), Codec(pparallel.build(SafeSerializerConfig()), "m0")
    with LocalTransport.meeting(LocalTransportConfig(), names) as meeting:
        members = [Member(each, n, n, 2, names, meeting.address) for n, each in enumerate(names)]
        hostile = LocalTransport(LocalTransportConfig(), member=members[0])

        class Hostile(Received):
            @override
            def on_message(self, sender: str, frames: Frames) -> None:
                for item in codec.items(frames[0])[1:]:
                    if item[0] == SERVICE:
                        hostile.send(sender, answer(item[1], kind_of(frames)))

        opening = threading.Thread(target=hostile.open, args=(Hostile(echo),))
        opening.start()
        config = safe(list(names), ordered_server={"backend": "memory"})
        errors = (SerializationError, RemoteError)
        with pytest.raises(errors) as caught, pparallel.build(config, member=members[1]):
            pass
        opening.join(PATIENCE)
        hostile.close()
    return caught.value


def test_what_a_hostile_peer_answers_is_not_unpickled(tmp_path: Path) -> None:
    path = tmp_path / "made"
    evil = pickled(path)
    serializer = pparallel.build(SafeSerializerConfig())
    codec = Codec(serializer, "m0")

    def answering(status: int, frames: Frames) -> Callable[[int, int], Frames]:
        def answer(number: int, kind: int) -> Frames:
            item = (RESULT, number, status, None, len(frames), len(frames))
            head = codec.head([0, item], kind)
            return [head, *frames]

        return answer

    for status in (PICKLED, OBJECT, FAILED):
        error = hostile_first_member(answering(status, [evil]))
        assert isinstance(error, SerializationError)
    for exception, state in (([evil], None), (None, [evil]), ([evil], [evil])):
        for name in ("LookupError", "os.mkdir", "eval", "pparallel.errors.Any"):
            envelope = (name, "a message", "a traceback", exception, state)
            error = hostile_first_member(answering(FAILED, serializer.dumps(envelope)))
            assert isinstance(error, RemoteError)
    assert not path.exists()
    assert context.count() == 0
