"""What the transport ``ray`` is made of."""

from __future__ import annotations

from typing import cast

import pytest
from pydantic import SecretStr

from pparallel.errors import ConfigError
from pparallel_ray.transport.dispatcher import Dispatcher, Then
from pparallel_ray.transport.keys import JobKey, fresh
from pparallel_ray.transport.messages import Packed, pack, unpack
from pparallel_ray.transport.peer import MOST, Peer


def test_what_is_cut_short_or_lies_is_refused() -> None:
    data = pack([b"0", b"12345"]).data
    lie = data[:1] + b"\xff\xff\xff\xff" + data[5:]
    for bad in (lie, *(data[:cut] for cut in range(len(data)))):
        with pytest.raises(ValueError, match="message"):
            unpack(bad, [])
    assert unpack(data, [])[1] == [b"0", b"12345"]


class Calls:
    """Takes the place of a dispatcher."""

    is_here = True


def test_so_many_bytes_are_on_their_way() -> None:
    pushed = list[tuple[int, Then]]()

    def push(number: int, message: Packed, size: int, then: Then) -> None:
        pushed.append((number, then))

    def peer(limit: int) -> Peer:
        return Peer(push, lambda _: None, lambda *_: None, cast("Dispatcher", Calls()), limit)

    one = peer(100)
    for size in (50, 50, 50, 50, 500):  # the last has more than the limit, and goes alone
        one.put(Packed(b"", [], size))
    assert [number for number, _ in pushed] == [1, 2]
    for at in range(4):
        pushed[at][1](None, None)
    assert [number for number, _ in pushed] == [1, 2, 3, 4, 5]
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
