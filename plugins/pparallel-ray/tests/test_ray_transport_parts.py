"""What the transport ``ray`` is made of."""

from __future__ import annotations

import pytest
from pydantic import SecretStr
from typing_extensions import Buffer

import pparallel
from pparallel.errors import ConfigError
from pparallel.interfaces.transport import Frames
from pparallel.runtime.links.ordering import Ordering
from pparallel.runtime.member import Member
from pparallel_ray import RayTransportConfig
from pparallel_ray.cluster import RayConnection
from pparallel_ray.transport.keys import JobKey, fresh
from pparallel_ray.transport.meeting import Place
from pparallel_ray.transport.messages import LARGE, Kind, pack, unpack


def test_messages_of_every_kind() -> None:
    strided = memoryview(bytearray(range(100)))[::3]
    table = memoryview(bytearray(range(100))).cast("B", (10, 10))
    several: list[Frames] = [[b"", b"x", bytearray(3)], [], [strided, table], [bytes(LARGE - 1)]]
    packed = [pack(Kind.REQUEST, number, frames) for number, frames in enumerate(several)]
    found = list(unpack(b"".join(each.data for each in packed), []))
    assert [(each.kind, each.number) for each in found] == [(Kind.REQUEST, n) for n in range(4)]
    for message, sent in zip(found, several, strict=True):
        assert message.frames is not None
        assert [bytes(each) for each in message.frames] == [
            memoryview(each).tobytes() for each in sent
        ]
        assert not any(memoryview(each).readonly for each in message.frames)


def test_large_frames_lie_elsewhere(running_cluster: RayConnection) -> None:
    import ray

    sent: list[Buffer] = [bytearray(b"a" * LARGE), b"small", bytes(2 * LARGE)]
    packed = pack(Kind.REPLY, 7, sent)
    assert len(packed.data) < 100
    assert packed.size > 3 * LARGE
    (message,) = unpack(packed.data, [ray.get(packed.large)])
    assert message.frames is not None
    assert [bytes(each) for each in message.frames] == [bytes(each) for each in sent]
    assert not any(memoryview(each).readonly for each in message.frames)
    (lost,) = unpack(packed.data, [None])
    assert lost.frames is None


@pytest.mark.parametrize("cut", [1, 12, 13, 20, 29, 30])
def test_what_is_cut_short_is_refused(cut: int) -> None:
    data = pack(Kind.REQUEST, 1, [b"0", b"12345"]).data
    with pytest.raises(ValueError, match=r"parcel|message"):
        list(unpack(data[:cut], []))
    assert len(list(unpack(data, []))) == 1


def test_a_count_of_frames_that_is_a_lie() -> None:
    data = bytearray(pack(Kind.REQUEST, 1, [b"0"]).data)
    data[9:13] = b"\xff\xff\xff\xff"
    with pytest.raises(ValueError, match="more frames than it is long"):
        list(unpack(bytes(data), []))


def test_parcels_are_put_in_order_and_opened_once() -> None:
    sequence, done = Ordering(), list[int]()

    def act(number: int) -> None:
        done.append(number)
        if number == 1:  # what is acted on brings the next
            sequence.arrived(2, lambda: done.append(2))

    for number in (3, 1, 1, 0, 0, 3):
        sequence.arrived(number, lambda number=number: act(number))  # type: ignore[misc]
    assert done == [0, 1, 2, 3]


def test_who_knows_the_key_proves_it() -> None:
    keys = fresh(["a", "b"])
    one, other, stranger = JobKey(keys["a"]), JobKey(keys["b"]), JobKey(fresh(["a"])["a"])
    proof = one.proof(b"to", b"b")
    assert other.holds(proof, b"to", b"b")
    for wrong in (
        b"",
        None,
        stranger.proof(b"to", b"b"),
        one.proof(b"tob"),
        one.proof(b"t", b"ob"),
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
