"""Parcels: what a serializer made, packed and unpacked, in one process."""

from __future__ import annotations

import errno
import logging
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from typing_extensions import Buffer

import pparallel
from pparallel.runtime.shm import Arena, Parcel, Parcels
from pparallel.runtime.shm.heads import HEAD, INLINE
from pparallel.testing.patience import PATIENCE
from pparallel_serializers import DillSerializerConfig

KB, MB = 1 << 10, 1 << 20


def array(content: Any) -> Any:
    """Return a read-only array of bytes; mypy does not know that arrays are buffers."""
    return np.array(np.frombuffer(content, np.uint8)) if len(content) else np.empty(0, np.uint8)


class Ends:
    """Two ends with an arena each, as a pool and its worker have; here in one process."""

    def __init__(self, budget: int = 256 * MB) -> None:
        self.arenas = [Arena.create(budget=budget), Arena.create(budget=budget)]
        self.attached = [Arena.attach(each.fd) for each in self.arenas]
        self.here = Parcels(self.arenas[0], {1: self.attached[1]})
        self.there = Parcels(self.arenas[1], {0: self.attached[0]})

    def blocks(self) -> list[int]:
        return [each.usage().blocks for each in self.arenas]

    def close(self) -> None:
        for each in (*self.arenas, *self.attached):
            each.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


def sent(parcel: Parcel) -> tuple[bytes, list[int]]:
    """Return what the receiver gets: the descriptors are copies, as after SCM_RIGHTS."""
    head = parcel.head()
    arrived = [os.dup(each) for each in parcel.fds]
    for each in parcel.fds:
        os.close(each)
    return head, arrived


def ramp(nbytes: int, start: int = 0) -> bytes:
    return (np.arange(start, start + nbytes) % 251).astype(np.uint8).tobytes()


SIZES = [0, 1, 50, INLINE - 1, INLINE, INLINE + 1, HEAD, 100_000, MB, MB + 1, 3 * MB]


# -- contents -------------------------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", SIZES)
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, array])
def test_one_buffer_arrives(ends: Ends, nbytes: int, kind: Callable[[bytes], Buffer]) -> None:
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


# -- moving ---------------------------------------------------------------------------------------


def echo(ends: Ends, buffers: list[Buffer]) -> list[bytes]:
    parcel = ends.there.pack(buffers, move=True)
    buffers.clear()
    return [bytes(each) for each in ends.here.unpack(*sent(parcel))]


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


def test_a_shared_block_does_not_move(ends: Ends) -> None:
    arena = ends.arenas[0]
    block = arena.allocate(MB)
    assert block is not None
    block.write(ramp(MB))
    (reader,) = arena.share(block, 1)
    own: Buffer = block.view()
    assert echo(ends, [reader.view()]) == [ramp(MB)]
    parcel = ends.here.pack([own], move=True)
    del own
    assert ends.blocks() == [2, 0]
    ends.here.drop(parcel.head())


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


# -- short of memory ------------------------------------------------------------------------------


@pytest.fixture
def short() -> Iterator[Ends]:
    made = Ends(budget=2 * MB)
    yield made
    made.close()


def test_over_budget_data_goes_through_a_file(
    short: Ends, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = [b"s", ramp(MB), ramp(3 * MB), ramp(5 * MB), ramp(MB, 5), ramp(MB, 9)]
    kept = []
    for _ in range(3):
        found = short.there.unpack(*sent(short.here.pack(wanted)))
        assert [bytes(each) for each in found] == wanted
        memoryview(found[3])[:4] = b"mine"
        kept.append(found)
    warnings = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert warnings[0].name.startswith("pparallel.")
    assert f"its budget is {2 * MB} bytes" in caplog.text
    assert "raise the limit" in caplog.text


def test_a_large_head_goes_through_a_file_too(short: Ends) -> None:
    wanted = [ramp(9999, index) for index in range(500)]
    parcel = short.here.pack(wanted)
    assert len(parcel.head()) < 100
    assert len(parcel.fds) == 1
    assert [bytes(each) for each in short.there.unpack(*sent(parcel))] == wanted


def test_without_an_arena_everything_goes_through_files(caplog: pytest.LogCaptureFixture) -> None:
    ends = Parcels(None, {})
    for _ in range(2):
        found = ends.unpack(*sent(ends.pack([ramp(MB), b"s", ramp(5 * MB)])))
        assert [bytes(each) for each in found] == [ramp(MB), b"s", ramp(5 * MB)]
    assert len(caplog.records) == 1
    assert "there is no shared memory" in caplog.text


def test_what_went_through_a_file_can_be_returned(short: Ends) -> None:
    found = short.there.unpack(*sent(short.here.pack([ramp(3 * MB)])))
    assert echo(short, found) == [ramp(3 * MB)]


def test_a_dropped_file_leaves_nothing(short: Ends) -> None:
    for wanted in ([ramp(MB)] * 5, [ramp(9999)] * 500):
        short.here.drop(*sent(short.here.pack(wanted)))
        assert short.blocks() == [0, 0]


def test_a_file_that_did_not_come_along_is_an_error(short: Ends) -> None:
    parcel = short.here.pack([ramp(MB), ramp(3 * MB)])
    head, fds = sent(parcel)
    with pytest.raises(OSError, match=r"came without the file .* raise the limit"):
        short.there.unpack(head)
    assert short.blocks() == [0, 0]
    short.here.drop(head, fds)


def test_a_retained_block_may_have_to_be_copied_to_a_file(short: Ends) -> None:
    short.arenas[1].allocate(2 * MB)
    (kept,) = short.there.unpack(short.here.pack([ramp(MB)]).head())
    parcel = short.there.pack([kept], move=True)
    parcel.seal()
    assert len(parcel.fds) == 1
    assert [bytes(each) for each in short.here.unpack(*sent(parcel))] == [ramp(MB)]


@contextmanager
def no_descriptors_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_without_descriptors_there_is_a_clear_error_and_nothing_is_leaked(short: Ends) -> None:
    with no_descriptors_left(), pytest.raises(OSError, match=r"raise ulimit -n") as caught:
        short.here.pack([ramp(MB), ramp(5 * MB)])
    assert caught.value.errno == errno.EMFILE
    assert short.blocks() == [0, 0]


def test_without_descriptors_a_file_that_came_is_read(short: Ends) -> None:
    head, fds = sent(short.here.pack([ramp(5 * MB)]))
    with no_descriptors_left():
        (found,) = short.there.unpack(head, fds)
    assert bytes(found) == ramp(5 * MB)


def test_with_the_disk_full_there_is_a_clear_error_and_nothing_is_leaked(
    short: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    (kept,) = short.there.unpack(short.here.pack([ramp(MB)]).head())
    own = short.arenas[1].allocate(2 * MB)
    assert own is not None

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match=r"No space left on device\): free some space there"):
        short.here.pack([b"s", ramp(5 * MB)])
    parcel = short.there.pack([b"s", kept], move=True)
    with pytest.raises(OSError, match="shared memory is short"):
        parcel.seal()
    assert bytes(kept) == ramp(MB)
    del kept
    short.there.settle()
    assert short.blocks() == [0, 1]


def test_other_threads_run_while_much_is_copied(ends: Ends) -> None:
    """Nothing else makes this thread let go: not the copy of little, nor the interpreter."""
    woken, turns = threading.Event(), list[int]()

    def run() -> None:
        woken.wait()
        turns.append(1)

    block, source = ends.arenas[0].allocate(64 * MB), bytearray(64 * MB)
    assert block is not None
    block.write(source)
    other = threading.Thread(target=run)
    other.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(10 * PATIENCE)
    try:
        woken.set()
        end = time.monotonic() + PATIENCE
        while not turns and time.monotonic() < end:
            block.write(b"little")
            before = len(turns)
            block.write(source)
        assert (before, turns) == (0, [1])
    finally:
        sys.setswitchinterval(interval)
        other.join()
        block.release()


# -- strangers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("longest", [40, HEAD])
@pytest.mark.parametrize(
    "buffers", [[b"x" * 50], [ramp(MB)], [b"s", ramp(MB)], [ramp(100)] * 5000], ids=len
)
def test_what_lies_in_an_unknown_arena_is_refused(buffers: list[Buffer], longest: int) -> None:
    arena = Arena.create(budget=16 * MB, smallest=64)
    stranger = Parcels(None, {})
    head = Parcels(arena, {}, longest=longest).pack(buffers).head()
    if arena.usage().blocks:
        with pytest.raises(RuntimeError, match="lies in arena 0, which is not known here"):
            stranger.unpack(head)
        stranger.drop(head)
    other = Arena.attach(arena.fd)
    found = Parcels(None, {0: other}).unpack(head)
    assert [bytes(each) for each in found] == buffers
    del found
    assert arena.usage().blocks == 0
    other.close()
    arena.close()
