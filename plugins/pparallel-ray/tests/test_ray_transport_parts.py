"""What the transport ``ray`` is made of."""

from __future__ import annotations

from typing import cast

import pytest
from pydantic import SecretStr
from typing_extensions import Buffer

import pparallel
from pparallel.errors import ConfigError
from pparallel.interfaces.transport import Frames
from pparallel.runtime.member import Member
from pparallel_ray import RayTransportConfig
from pparallel_ray.cluster import RayConnection
from pparallel_ray.transport.dispatcher import Dispatcher, Then
from pparallel_ray.transport.keys import JobKey, fresh
from pparallel_ray.transport.meeting import Place
from pparallel_ray.transport.messages import LARGE, MESSAGE, RESET, Packed, pack, unpack
from pparallel_ray.transport.peer import MOST, Peer


def test_messages_of_every_kind() -> None:
    strided = memoryview(bytearray(range(100)))[::3]
    table = memoryview(bytearray(range(100))).cast("B", (10, 10))
    several: list[Frames] = [[b"", b"x", bytearray(3)], [], [strided, table], [bytes(LARGE - 1)]]
    for sent in several:
        packed = pack(sent, RESET)
        assert not packed.large
        kind, frames = unpack(packed.data, [])
        assert kind == RESET
        assert [bytes(each) for each in frames] == [memoryview(each).tobytes() for each in sent]
        assert not any(memoryview(each).readonly for each in frames)


def test_large_frames_lie_elsewhere(running_cluster: RayConnection) -> None:
    import ray

    sent: list[Buffer] = [bytearray(b"a" * LARGE), b"small", bytes(2 * LARGE)]
    packed = pack(sent)
    assert len(packed.data) < 100
    assert packed.size > 3 * LARGE
    kind, frames = unpack(packed.data, ray.get(packed.large[0]))
    assert kind == MESSAGE
    assert [bytes(each) for each in frames] == [bytes(each) for each in sent]
    assert not any(memoryview(each).readonly for each in frames)
    with pytest.raises(ValueError, match="no message"):
        unpack(packed.data, [])


@pytest.mark.parametrize("cut", [0, 1, 4, 5, 12, 20, 21, 25])
def test_what_is_cut_short_is_refused(cut: int) -> None:
    data = pack([b"0", b"12345"]).data
    with pytest.raises(ValueError, match="message"):
        unpack(data[:cut], [])
    assert unpack(data, [])[1] == [b"0", b"12345"]


def test_a_count_of_frames_that_is_a_lie() -> None:
    data = bytearray(pack([b"0"]).data)
    data[1:5] = b"\xff\xff\xff\xff"
    with pytest.raises(ValueError, match="more frames than it is long"):
        unpack(bytes(data), [])


class Calls:
    """Takes the place of a dispatcher."""

    is_here = True


def test_so_many_bytes_are_on_their_way() -> None:
    pushed, failed = list[tuple[int, Then]](), list[BaseException]()

    def peer(limit: int) -> Peer:
        def push(number: int, message: Packed, size: int, then: Then) -> None:
            pushed.append((number, then))

        return Peer(push, failed.append, lambda *_: None, cast("Dispatcher", Calls()), limit)

    one = peer(100)
    for _ in range(4):
        one.put(Packed(b"", [], 50))
    one.put(Packed(b"", [], 500))  # more than the limit: alone
    assert [number for number, _ in pushed] == [1, 2]
    for at in range(4):
        pushed[at][1](None, None)
    assert [number for number, _ in pushed] == [1, 2, 3, 4, 5]
    one.put(Packed(b"", [], 1))
    one.end(lambda: None)
    pushed[4][1](None, None)
    assert len(pushed) == 5
    assert not failed
    many = peer(10 * MOST)
    for _ in range(MOST + 1):
        many.put(Packed(b"", [], 1))
    assert len(pushed) == 5 + MOST


def test_messages_before_the_arrival_of_their_sender_wait() -> None:
    taken = list[bytes]()
    peer = Peer(
        lambda *_: None,
        lambda _: None,
        lambda _, frames: taken.append(bytes(frames[0])),
        cast("Dispatcher", Calls()),
        100,
    )
    for number in (2, 1, 1):
        peer.arrived(number, pack([b"%d" % number]).data, [])
    assert not taken
    peer.admit()
    peer.admit()
    peer.end(lambda: taken.append(b"end"))
    peer.arrived(3, pack([b"3"]).data, [])
    assert taken == [b"1", b"2", b"end"]


def test_who_knows_the_key_proves_it() -> None:
    keys = fresh(["a", "b"])
    one, other, stranger = JobKey(keys["a"]), JobKey(keys["b"]), JobKey(fresh(["a"])["a"])
    proof = one.proof(b"to", b"b")
    assert other.holds(proof, b"to", b"b")
    for wrong in (
        b"",
        stranger.proof(b"to", b"b"),
        one.proof(b"tob"),
        one.proof(b"t", b"ob"),
        one.of("another meeting").proof(b"to", b"b"),
    ):
        assert not other.holds(wrong, b"to", b"b")
    for bad in ({}, {"job": SecretStr("text")}, {"job": SecretStr("00" * 8)}):
        with pytest.raises(ConfigError, match="share a key"):
            JobKey(bad)


def test_addresses() -> None:
    for address in ("127.0.0.1:6379/job-1", "mine"):
        assert str(Place.of(Member("a", 0, 0, 2, ("a", "b"), address))) == address
    given = RayConnection(address="auto")
    assert Place("h:1", "x").connection(given).address == "h:1"
    assert Place("", "x").connection(given) is given


def test_it_is_chosen_by_name() -> None:
    config = pparallel.load(
        {"members": 2, "launcher": {"backend": "thread"}, "transport": {"backend": "ray"}}
    )
    assert isinstance(config.transport, RayTransportConfig)
