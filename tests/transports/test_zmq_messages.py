"""The binary form of ZeroMQ's messages, and large ones, which travel in pieces."""

from __future__ import annotations

import struct
from typing import Any

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pparallel.errors import SerializationError
from pparallel_zmq import messages
from pparallel_zmq.messages import BadMessageError, Incoming, Limits

LIMITS = Limits(frames=16, size=2**24, piece=2**16)

small = st.binary(max_size=100)
frames = st.lists(small | small.map(bytearray), max_size=5)


@settings(max_examples=30)
@given(frames)
def test_what_is_packed_is_unpacked(sent: list[bytes | bytearray]) -> None:
    ((part,),) = messages.pack(sent, LIMITS)
    received: Any = messages.unpack(bytes(part), LIMITS)
    assert received == sent
    assert [type(each) for each in received] == [type(each) for each in sent]


@settings(max_examples=30)
@given(small, small, st.data())
def test_damaged_messages_are_refused(one: bytes, two: bytes, data: st.DataObject) -> None:
    part = bytes(messages.pack([one, two], LIMITS)[0][0])
    cut = data.draw(st.integers(0, len(part) - 1))
    for damaged in (part[:cut], part + b"x"):
        with pytest.raises(BadMessageError):
            messages.unpack(damaged, LIMITS)


def test_frames_that_are_large_together_travel_in_pieces() -> None:
    half = bytes(messages.INLINE // 2)
    assert len(messages.pack([half, half], LIMITS)) == 1
    (head,), *pieces = messages.pack([half, half + b"x"], LIMITS)
    assert [piece for _, piece in pieces] == [half, half + b"x"]
    incoming = messages.unpack(bytes(head), LIMITS)
    assert isinstance(incoming, Incoming)
    of = bytes(pieces[0][0])
    for head_of, piece in ((b"another", half), (of, b""), (of, half * 3)):
        with pytest.raises(BadMessageError):
            incoming.feed(head_of, memoryview(piece))


def test_more_than_the_limits_allow_is_refused() -> None:
    with pytest.raises(SerializationError, match=r"transport\.max_frames"):
        messages.pack([b""] * 17, LIMITS)
    with pytest.raises(SerializationError, match=r"transport\.max_message"):
        messages.pack([bytes(2**24 + 1)], LIMITS)
    few = Limits(frames=1, size=2**10, piece=2**16)
    for sent in ([b"", b""], [bytearray(2**11)]):
        with pytest.raises(BadMessageError):
            messages.unpack(bytes(messages.pack(sent, LIMITS)[0][0]), few)


@pytest.mark.parametrize("first", [2**20 - 2, 64 * 2**20])
def test_announced_frames_cost_nothing_until_their_bytes_arrive(first: int) -> None:
    me = psutil.Process()
    before = me.memory_info().rss
    table = [first << 1] + [(2**20 - 2) << 1] * 250 + [64 * 2**20 << 1] * 4
    kept = [Incoming(messages.FRAMES, 1, table) for _ in range(4)]
    for each in kept:
        assert not each.feed(struct.pack("<B3xII", messages.PIECE, 0, 1), memoryview(b"x"))
    assert me.memory_info().rss - before < 20 * 2**20
