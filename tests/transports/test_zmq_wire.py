"""The binary form of ZeroMQ's messages: two frames have a way of their own through it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pparallel_zmq import wire
from pparallel_zmq.wire import BadMessageError, Kind, Limits

LIMITS = Limits(frames=16, size=2**20, piece=2**16)

small = st.binary(max_size=100)
frames = st.lists(small | small.map(bytearray), max_size=5)


@settings(max_examples=30)
@given(frames, st.sampled_from([Kind.REQUEST, Kind.REPLY]), st.integers(0, 2**64 - 1))
def test_what_is_packed_is_unpacked(sent: list[bytes | bytearray], kind: int, number: int) -> None:
    part, raws = wire.pack(kind, number, sent, LIMITS, wire.FAILED)
    assert not raws
    *head, _, received = wire.unpack(part, LIMITS)
    assert head == [kind, wire.FAILED, number]
    assert received == sent
    assert [type(each) for each in received] == [type(each) for each in sent]


@settings(max_examples=30)
@given(small, small)
def test_two_frames_are_written_as_any_others(one: bytes, two: bytes) -> None:
    part, _ = wire.pack(Kind.REQUEST, 7, [one, two], LIMITS)
    assert part == wire.say(Kind.REQUEST, one, two, number=7)


@settings(max_examples=30)
@given(small, small, st.data())
def test_damaged_pairs_are_refused(one: bytes, two: bytes, data: st.DataObject) -> None:
    part = wire.say(Kind.REQUEST, one, two, number=7)
    cut = data.draw(st.integers(0, len(part) - 1))
    with pytest.raises(BadMessageError):
        wire.unpack(part[:cut], LIMITS)
    with pytest.raises(BadMessageError):
        wire.unpack(part + b"x", LIMITS)


@pytest.mark.parametrize("at", [2, 3, 5, 7], ids=["zero", "zero, high", "count", "count, high"])
def test_a_head_with_more_than_it_should_have_is_refused(at: int) -> None:
    part = bytearray(wire.say(Kind.REQUEST, b"one", b"two"))
    part[at] = 1
    with pytest.raises(BadMessageError):
        wire.unpack(bytes(part), LIMITS)


def test_two_frames_that_are_large_together_travel_in_pieces() -> None:
    half = bytes(wire.INLINE // 2)
    assert wire.pack(Kind.REQUEST, 1, [half, half], LIMITS)[1] == []
    part, raws = wire.pack(Kind.REQUEST, 1, [half, half + b"x"], LIMITS)
    assert raws == [half, half + b"x"]
    _, flags, _, _, received = wire.unpack(part, LIMITS)
    assert flags & wire.LARGE
    assert received == []
