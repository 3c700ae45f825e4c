"""Parcels: what a serializer made, packed and unpacked, in one process."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from parcel_ends import KB, MB, Ends, array, echo, ramp, sent
from parcel_ends import ends as ends
from typing_extensions import Buffer

import pparallel
from pparallel.errors import ClosedError
from pparallel.runtime.shm import Parcels
from pparallel.runtime.shm.heads import HEAD, INLINE
from pparallel_serializers import DillSerializerConfig

SIZES = [0, 1, 50, INLINE - 1, INLINE, INLINE + 1, HEAD, 100_000, MB, MB + 1, 3 * MB]


# -- contents -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, array])
def test_one_buffer_arrives(ends: Ends, kind: Callable[[bytes], Buffer]) -> None:
    for nbytes in SIZES:
        (found,) = ends.there.unpack(*sent(ends.here.pack([kind(ramp(nbytes))])))
        assert bytes(found) == ramp(nbytes)
        assert not memoryview(found).readonly
        assert memoryview(found).format == "B"
        del found
        assert ends.blocks() == [0, 0]


def test_buffers_of_all_sizes_arrive_in_order(ends: Ends) -> None:
    wanted = [ramp(nbytes, index) for index, nbytes in enumerate(SIZES)]
    parcel = ends.here.pack(wanted)
    head = parcel.head()
    assert len(head) < HEAD + KB
    found = ends.there.unpack(head)
    assert [bytes(each) for each in found] == wanted
    del found
    assert ends.blocks() == [0, 0]


def test_many_small_buffers_take_one_block(ends: Ends) -> None:
    wanted = [ramp(index % 999) for index in range(5000)]
    parcel = ends.here.pack(wanted)
    assert len(parcel.head()) < 100
    assert ends.blocks() == [1, 0]
    assert [bytes(each) for each in ends.there.unpack(parcel.head())] == wanted
    assert ends.blocks() == [0, 0]


def test_many_large_buffers_have_a_block_each(ends: Ends) -> None:
    wanted = [ramp(INLINE, index) for index in range(3000)]
    parcel = ends.here.pack(wanted)
    assert len(parcel.head()) < 100
    assert ends.blocks() == [3001, 0]
    found = ends.there.unpack(parcel.head())
    assert [bytes(each) for each in found] == wanted
    assert ends.blocks() == [3000, 0]
    del found[100:]
    assert ends.blocks() == [100, 0]


def test_no_buffers_at_all(ends: Ends) -> None:
    assert ends.there.unpack(ends.here.pack([]).head()) == []


def test_buffers_of_other_shapes_and_types(ends: Ends) -> None:
    wanted: list[Any] = [
        np.arange(10_000, dtype=np.complex128).reshape(100, 100),
        np.asfortranarray(np.arange(20_000.0).reshape(100, 200)),
        np.array(7.5),
        np.arange(5, dtype="<i2"),
    ]
    found = ends.there.unpack(ends.here.pack(wanted).head())
    for each, buffer in zip(wanted, found, strict=True):
        assert bytes(buffer) == each.tobytes("A")


def test_what_is_not_contiguous_is_refused_and_nothing_is_kept(ends: Ends) -> None:
    with pytest.raises(BufferError, match="contiguous"):
        ends.here.pack([ramp(MB), memoryview(bytes(1000))[::2]])
    assert ends.blocks() == [0, 0]


def test_a_head_may_be_any_buffer(ends: Ends) -> None:
    head = ends.here.pack([b"small", ramp(MB)]).head()
    found = ends.there.unpack(memoryview(bytearray(head)))
    assert [bytes(each) for each in found] == [b"small", ramp(MB)]


def test_what_arrives_is_the_receivers_own(ends: Ends) -> None:
    source = bytearray(ramp(MB))
    small = bytearray(b"small")
    head = ends.here.pack([small, source]).head()
    source[:5] = small[:5] = b"later"
    found = ends.there.unpack(head)
    assert [bytes(each)[:5] for each in found] == [b"small", ramp(5)]
    memoryview(found[1])[:5] = b"there"
    assert source[:5] == b"later"


def test_objects_arrive_through_a_serializer(ends: Ends) -> None:
    serializer = pparallel.build(DillSerializerConfig())
    thing = {"w": torch.arange(300_000.0), "a": np.arange(50_000), "n": [1, "two", None]}
    found = serializer.loads(ends.there.unpack(ends.here.pack(serializer.dumps(thing)).head()))
    assert torch.equal(found["w"], thing["w"])  # type: ignore[arg-type]
    found["w"] += 1
    assert np.array_equal(found["a"], np.arange(50_000))
    assert ends.blocks() == [2, 0]
    part = found["w"][5:]
    del found
    assert ends.blocks() == [1, 0]
    assert part[0] == 6
    del part
    assert ends.blocks() == [0, 0]


def test_what_is_returned_as_it_came_is_not_copied(ends: Ends) -> None:
    found = ends.there.unpack(ends.here.pack([b"note", ramp(MB)]).head())
    parcel = ends.there.pack(found, move=True)
    del found
    parcel.seal()
    assert ends.blocks() == [1, 0]
    back = ends.here.unpack(parcel.head())
    assert [bytes(each) for each in back] == [b"note", ramp(MB)]
    assert ends.blocks() == [1, 0]
    del back
    assert ends.blocks() == [0, 0]


def test_a_part_of_a_block_moves_too_and_several_of_one(ends: Ends) -> None:
    whole = memoryview(ends.there.unpack(ends.here.pack([ramp(MB)]).head())[0])
    buffers: list[Buffer] = [whole[: MB // 2], whole[MB // 3 :], whole[100:200_100]]
    del whole
    parcel = ends.there.pack(buffers, move=True)
    buffers.clear()
    parcel.seal()
    assert ends.blocks() == [1, 0]
    found = ends.here.unpack(parcel.head())
    wanted = ramp(MB)
    assert [bytes(each) for each in found] == [
        wanted[: MB // 2],
        wanted[MB // 3 :],
        wanted[100:200_100],
    ]
    del found[1:]
    assert ends.blocks() == [1, 0]
    assert bytes(found[0]) == wanted[: MB // 2]
    found.clear()
    assert ends.blocks() == [0, 0]


def test_a_small_part_of_a_large_block_is_copied(ends: Ends) -> None:
    (whole,) = ends.there.unpack(ends.here.pack([ramp(8 * MB)]).head())
    assert echo(ends, [memoryview(whole)[: MB // 2]]) == [ramp(MB // 2)]
    del whole
    assert ends.blocks() == [0, 0]


def test_what_somebody_retains_is_copied_and_freed_later(ends: Ends) -> None:
    (kept,) = ends.there.unpack(ends.here.pack([ramp(MB)]).head())
    parcel = ends.there.pack([kept], move=True)
    (back,) = ends.here.unpack(*sent(parcel))
    assert ends.blocks() == [1, 1]
    memoryview(back)[:4] = b"mine"
    assert bytes(kept) == ramp(MB)
    memoryview(kept)[:4] = b"hold"
    assert bytes(back)[:4] == b"mine"
    ends.there.settle()
    assert ends.blocks() == [1, 1]
    del kept
    assert ends.blocks() == [1, 1]
    ends.there.settle()
    assert ends.blocks() == [0, 1]
    ends.there.settle()
    del back
    assert ends.blocks() == [0, 0]


def test_what_is_retained_can_be_returned_again_and_again(ends: Ends) -> None:
    (kept,) = ends.there.unpack(ends.here.pack([ramp(MB)]).head())
    for _ in range(5):
        assert echo(ends, [kept]) == [ramp(MB)]
    del kept
    ends.there.settle()
    assert ends.blocks() == [0, 0]


def test_a_result_of_ones_own_block_moves_back_and_forth(ends: Ends) -> None:
    buffers = ends.there.unpack(ends.here.pack([ramp(MB)]).head())
    ways = [(ends.there, ends.here), (ends.here, ends.there)]
    for source, target in ways * 10:
        parcel = source.pack(buffers, move=True)
        buffers.clear()
        buffers = target.unpack(parcel.head())
    assert ends.blocks() == [1, 0]
    assert bytes(buffers[0]) == ramp(MB)


def test_two_threads_return_the_same_object(ends: Ends) -> None:
    (thing,) = ends.there.unpack(ends.here.pack([ramp(MB)]).head())
    first = ends.there.pack([thing], move=True)
    second = ends.there.pack([thing], move=True)
    del thing
    found = [ends.here.unpack(*sent(each)) for each in (first, second)]
    memoryview(found[0][0])[:4] = b"mine"
    assert bytes(found[1][0]) == ramp(MB)
    assert ends.blocks() == [1, 1]


def test_a_parcel_refers_to_nothing_that_it_carries(ends: Ends) -> None:
    whole = memoryview(ends.there.unpack(ends.here.pack([ramp(MB)]).head())[0])
    parcel = ends.there.pack([b"x", whole, whole[:10], bytearray(10)], move=True)
    before = ends.blocks()
    del whole
    parcel.seal()
    assert ends.blocks() == before == [1, 0]
    ends.here.drop(parcel.head())
    assert ends.blocks() == [0, 0]


# -- what nobody unpacks --------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", [[b"s"], [ramp(MB)], [b"s", ramp(MB)], [ramp(999)] * 99])
def test_drop_lets_go_once(ends: Ends, wanted: list[Buffer]) -> None:
    head = ends.here.pack(wanted).head()
    ends.here.drop(head)
    assert ends.blocks() == [0, 0]
    other = ends.here.pack(wanted).head()
    ends.here.drop(head)
    found = ends.there.unpack(other)
    ends.here.drop(other)
    assert [bytes(each) for each in found] == wanted


@pytest.mark.parametrize("wanted", [[ramp(INLINE)], [b"s", ramp(MB)], [ramp(50)] * 5000])
def test_drop_finds_nothing_in_an_arena_that_is_closed(ends: Ends, wanted: list[Buffer]) -> None:
    head = ends.here.pack(wanted).head()
    ends.arenas[0].close()
    ends.here.drop(head)
    assert ends.attached[0].usage().blocks
    ends.attached[0].close()
    ends.there.drop(head)
    with pytest.raises(ClosedError):
        ends.there.unpack(head)


def test_a_parcel_is_unpacked_once(ends: Ends) -> None:
    head = ends.here.pack([b"s", ramp(MB)]).head()
    kept = ends.there.unpack(head)
    with pytest.raises(RuntimeError, match="is not on its way here"):
        ends.there.unpack(head)
    assert bytes(kept[1]) == ramp(MB)
    del kept
    with pytest.raises(RuntimeError, match="is not on its way here"):
        ends.there.unpack(head)
    assert ends.blocks() == [0, 0]


def test_what_cannot_be_unpacked_whole_leaves_nothing(ends: Ends) -> None:
    head = ends.here.pack([ramp(MB), ramp(MB, 7), ramp(MB, 9)]).head()
    middle = ends.here.pack([ramp(MB)]).head()
    ends.here.drop(middle)
    broken = bytearray(head)
    broken[8 + 24 : 8 + 48] = middle[8:32]  # an entry whose block is long gone
    lost = bytes(head[8 + 24 : 8 + 48])
    with pytest.raises(RuntimeError, match="is not on its way here"):
        ends.there.unpack(broken)
    assert ends.blocks() == [1, 0]
    ends.here.drop(head[:8] + lost * 3)
    assert ends.blocks() == [0, 0]


@pytest.mark.parametrize("wanted", [[ramp(999)], [ramp(MB)], [b"s", ramp(MB)], [ramp(999)] * 99])
def test_what_was_taken_back_can_be_sent_again(ends: Ends, wanted: list[Buffer]) -> None:
    sender = Parcels(ends.arenas[1], {0: ends.attached[0]}, longest=127, files=False)
    head = sender.pack(wanted).head()
    assert len(head) <= 127
    sender.hold(head)
    with pytest.raises(RuntimeError, match="is not on its way here"):
        ends.here.unpack(head)
    sender.drop(head)
    assert ends.blocks()[1] > 0
    sender.send(head)
    assert [bytes(each) for each in ends.here.unpack(head)] == wanted
    assert ends.blocks() == [0, 0]
    sender.hold(head)
    sender.send(head)
    assert ends.blocks() == [0, 0]


def test_without_files_what_finds_no_room_is_refused(ends: Ends) -> None:
    sender = Parcels(ends.arenas[1], {}, files=False)
    with pytest.raises(OSError, match="no room for 314572800 bytes: its budget is") as caught:
        sender.pack([ramp(MB), bytes(300 * MB)])
    assert caught.value.errno == errno.ENOMEM
    with pytest.raises(OSError, match="there is no shared memory"):
        Parcels(None, {}, files=False).pack([ramp(MB)])
    assert ends.blocks() == [0, 0]
