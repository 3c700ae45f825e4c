"""Shared memory: arenas, and buffers on their way by them."""

from __future__ import annotations

import gc
import itertools
import marshal
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_peer import AS_NOBODY, Peer, data

from pparallel.errors import ClosedError, ResourceExhaustedError
from pparallel.machine import memory as machine
from pparallel.runtime.memory import Arena, Payload, Usage, address_of, copy, writable
from pparallel.runtime.memory import arena as arena_module
from pparallel.runtime.memory import lock as lock_module
from pparallel.runtime.memory.arena import CAPACITIES, LARGEST

KB, MB = 1 << 10, 1 << 20
HOLD = "held += payload.unpack(packed); answer = [bytes(each[:9]) for each in held]"
ECHO = "answer = payload.move(payload.unpack(packed))"


def blocks(arena: Arena) -> int:
    return arena.usage().blocks


def resident(arena: Arena) -> int:
    return os.fstat(arena.fd).st_blocks * 512


@pytest.fixture(name="arena")
def _arena() -> Iterator[Arena]:
    arena = Arena.create("test", 64 * MB)
    yield arena
    arena.close()


@pytest.fixture(name="peer")
def _peer(arena: Arena) -> Iterator[Peer]:
    peer = Peer(arena)
    yield peer
    peer.close()


@pytest.fixture(name="ends")
def _ends(arena: Arena) -> Iterator[tuple[Payload, Payload]]:
    """Return both ends of a message, each of which has an arena and that of the other."""
    other = Arena.create("other", 64 * MB)
    here = [arena, Arena.attach(other.fd)]
    there = [Arena.attach(arena.fd), other]
    yield Payload(here, 0), Payload(there, 1)
    for each in (*here, *there):
        each.close()


# -- blocks ---------------------------------------------------------------------------------------


@given(nbytes=st.integers(1, LARGEST))
def test_a_block_is_at_most_a_quarter_larger_or_twice_below_a_megabyte(nbytes: int) -> None:
    capacity = next(each for each in CAPACITIES if each >= nbytes)
    assert capacity <= max(64, 2 * nbytes) if nbytes <= MB else capacity <= nbytes * 5 / 4 + 1


def test_memory_is_free_when_nothing_made_of_it_is_left(arena: Arena) -> None:
    memory = arena.allocate(100_000)
    memory[:3] = b"abc"
    part = memory[1:3].cast("B")
    assert len(memory) == 100_000
    del memory
    assert arena.usage() == Usage(128 * KB, 0, 64 * MB, 1)
    assert bytes(part) == b"bc"
    del part
    assert arena.usage() == Usage(0, 128 * KB, 64 * MB, 0)


def test_a_tensor_holds_its_block(arena: Arena) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.frombuffer(arena.allocate(MB), dtype=torch.float32)[5:9]
    assert blocks(arena) == 1
    del tensor
    assert blocks(arena) == 0


def test_a_block_in_a_cycle_is_free_once_that_is_collected(arena: Arena) -> None:
    cycle: list[Any] = [arena.allocate(MB)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert blocks(arena) == 0


def test_a_freed_block_is_used_again(arena: Arena) -> None:
    first = address_of(arena.allocate(MB))
    assert address_of(arena.allocate(MB - 5)) == first
    assert arena.usage().free == MB


def test_blocks_do_not_overlap(arena: Arena) -> None:
    sizes = [1, 64, 16 * KB, 17 * KB, 4097, MB, MB + 1, 3 * MB] * 3
    found = [arena.allocate(each) for each in sizes]
    for number, each in enumerate(found):
        each[:] = bytes([number]) * len(each)
    assert [set(each) for each in found] == [{number} for number in range(len(sizes))]
    starts = sorted((address_of(each), len(each)) for each in found)
    assert all(one + nbytes <= two for (one, nbytes), (two, _) in itertools.pairwise(starts))
    assert not any(start % 64 for start, _ in starts)


def test_free_memory_goes_back_when_idle(arena: Arena) -> None:
    kept = arena.allocate(MB)
    kept[:] = b"k" * MB
    del (several := [arena.allocate(2 * MB) for _ in range(5)])[:]
    assert arena.trim(idle=60) == 0
    assert arena.trim() == 10 * MB
    assert arena.usage() == Usage(MB, 0, 64 * MB, 1)
    assert resident(arena) < 2 * MB
    assert set(kept) == {ord("k")}
    assert not any(arena.allocate(2 * MB))  # new pages are zero
    assert several == []


def test_over_budget_an_error_says_so_and_nothing_is_lost(arena: Arena) -> None:
    held = [arena.allocate(16 * MB) for _ in range(4)]
    with pytest.raises(ResourceExhaustedError, match="its budget is 67108864 bytes") as caught:
        arena.allocate(16 * MB)
    assert caught.value.resource == "memory"
    held.pop()
    arena.allocate(16 * MB)
    assert blocks(arena) == 3


def test_free_blocks_of_other_sizes_make_room_within_the_budget(arena: Arena) -> None:
    del (several := [arena.allocate(MB) for _ in range(60)])[:]
    arena.allocate(32 * MB)
    assert arena.usage().free + arena.usage().leased <= 64 * MB
    assert several == []


def test_where_there_may_be_no_new_pages_a_larger_block_serves(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    del (several := [arena.allocate(4 * MB)])[:]
    monkeypatch.setattr(arena, "_known_room", 0)
    monkeypatch.setattr(arena_module, "has_room", lambda nbytes: nbytes < 0)
    monkeypatch.setattr(arena, "_discard", lambda *_: 0)
    assert len(arena.allocate(3 * MB)) == 3 * MB
    with pytest.raises(ResourceExhaustedError, match="memory is nearly used up"):
        arena.allocate(5 * MB)
    assert several == []


def test_new_pages_that_are_refused_leave_a_block_that_can_be_had_later(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(arena.mapping, "populate", lambda *_: False)
        with pytest.raises(ResourceExhaustedError, match="none left"):
            arena.allocate(2 * MB)
    assert arena.usage() == Usage(0, 0, 64 * MB, 0)
    assert len(arena.allocate(2 * MB)) == 2 * MB


def test_no_block_is_larger_than_the_largest(arena: Arena) -> None:
    with pytest.raises(ResourceExhaustedError, match="the largest block"):
        arena.allocate(LARGEST + 1)


def test_addresses_of_free_blocks_at_the_end_are_used_for_other_sizes() -> None:
    arena = Arena.create("narrow", 4 * MB)
    for mb in (1, 2, 3, 4) * 20:
        assert len(arena.allocate(mb * MB)) == mb * MB
    arena.close()


def test_only_an_arena_can_be_attached_to() -> None:
    fd = os.memfd_create("nothing")
    with pytest.raises(ValueError, match="not that of an arena"):
        Arena.attach(fd)
    os.close(fd)


def test_a_closed_arena_refuses_and_its_views_stay(arena: Arena) -> None:
    memory = arena.allocate(MB)
    memory[:] = b"v" * MB
    handle = arena.share(0, 0, 9)
    before = len(os.listdir("/proc/self/fd"))
    arena.close()
    arena.close()
    for use in (
        lambda: arena.allocate(5),
        lambda: arena.adopt(handle),
        arena.usage,
        arena.trim,
    ):
        with pytest.raises(ClosedError, match="the arena is closed"):
            use()
    assert set(memory) == {ord("v")}
    del memory
    assert len(os.listdir("/proc/self/fd")) == before - 2  # the arena's, and the mapping's
    assert "memfd:test" not in Path("/proc/self/maps").read_text()


def test_a_finalizer_in_the_midst_of_allocating_gets_an_error(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[BaseException] = []

    def collect() -> None:
        with pytest.raises(RuntimeError) as caught:
            arena.allocate(5)
        found.append(caught.value)

    with monkeypatch.context() as patched:
        patched.setattr(arena, "_collect", collect)
        memory = arena.allocate(MB)
    assert len(found) == 1
    assert len(memory) == MB
    assert len(arena.allocate(5)) == 5


def test_threads_share_an_arena(arena: Arena) -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        for turn in range(200):
            memory = arena.allocate(20_000 + 1000 * turn)
            memory[:100] = bytes([number]) * 100
            if set(memory[:100]) != {number}:
                wrong.append(turn)

    threads = [threading.Thread(target=work, args=(each,)) for each in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert wrong == []
    assert blocks(arena) == 0


def test_importing_it_imports_no_large_library() -> None:
    code = "import sys, pparallel.runtime.memory, pparallel.runtime.connection; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "numpy", "pydantic"} & set(done.stdout.split())


# -- between processes ----------------------------------------------------------------------------


def test_what_is_sent_is_freed_by_its_receiver(arena: Arena, peer: Peer) -> None:
    packed = peer.payload.pack([b"small", data(MB), data(20_000, 5)])
    assert peer.do(HOLD, packed=packed) == [b"small", data(9), data(9, 5)]
    assert blocks(arena) == 2
    peer.do("held.clear()")
    assert blocks(arena) == 0


def test_an_echo_is_the_block_that_was_sent(arena: Arena, peer: Peer) -> None:
    back = peer.payload.unpack(peer.do(ECHO, packed=peer.payload.pack([b"s", data(MB)])))
    assert [bytes(each) for each in back] == [b"s", data(MB)]
    assert (blocks(arena), blocks(peer.own)) == (1, 0)
    back.clear()
    assert arena.usage() == Usage(0, MB, 64 * MB, 0)


def test_what_the_receiver_keeps_comes_back_as_a_copy(arena: Arena, peer: Peer) -> None:
    keep = "held = payload.unpack(packed); answer = payload.move(held[:])"
    back = peer.payload.unpack(peer.do(keep, packed=peer.payload.pack([data(MB)])))
    assert (blocks(arena), blocks(peer.own)) == (1, 1)
    memoryview(back[0])[:5] = b"mine!"
    assert peer.do("answer = bytes(held[0][:5])") == data(5)
    peer.do("held.clear()")
    back.clear()
    assert (blocks(arena), blocks(peer.own)) == (0, 0)


def test_what_has_arrived_outlives_its_sender_and_other_pages_go_back(
    arena: Arena, peer: Peer
) -> None:
    fd = os.open(f"/proc/{peer.pid}/fd/{peer.do('answer = own.fd')}", os.O_RDWR)
    peer.do(FILL.replace("400", "20"))
    (found,) = peer.payload.unpack(peer.do("answer = payload.pack([data(1 << 20)])"))
    assert os.fstat(fd).st_blocks * 512 > 21 * MB
    peer.kill()
    peer.own.reclaim(peer.pid)
    assert blocks(peer.own) == 1
    assert os.fstat(fd).st_blocks * 512 < 3 * MB
    assert bytes(found) == data(MB)
    os.close(fd)


def test_blocks_of_the_killed_come_back(arena: Arena, peer: Peer) -> None:
    peer.do(HOLD, packed=peer.payload.pack([data(MB)]))
    peer.payload.pack([data(MB)])  # which it never receives
    assert blocks(arena) == 2
    peer.kill()
    arena.reclaim(peer.pid)
    assert blocks(arena) == 0


def test_where_room_is_short_what_the_dead_held_is_looked_for(arena: Arena, peer: Peer) -> None:
    peer.do(HOLD, packed=peer.payload.pack([data(48 * MB)]))
    peer.kill()
    assert len(arena.allocate(48 * MB)) == 48 * MB


def test_a_message_is_no_block_of_its_dead_sender(arena: Arena, peer: Peer) -> None:
    packed = peer.payload.pack([data(MB)])
    sent = peer.do(
        "d = payload.unpack(packed); payload.to = None; answer = payload.move(d)",
        packed=packed,
    )
    peer.kill()
    with pytest.raises(ResourceExhaustedError):
        arena.allocate(64 * MB)
    assert bytes(peer.payload.unpack(sent)[0]) == data(MB)


def test_a_forked_child_does_no_harm(arena: Arena) -> None:
    memory = arena.allocate(MB)
    memory[:] = b"p" * MB
    child = os.fork()
    if not child:
        found = 1
        try:
            assert set(memory) == {ord("p")}
            del memory
            try:
                arena.allocate(5)
            except ClosedError:
                found = 0
            arena.close()
        finally:
            os._exit(found)
    assert os.waitpid(child, 0)[1] == 0
    assert blocks(arena) == 1
    other = arena.allocate(MB)
    other[:] = b"o" * MB
    assert set(memory) == {ord("p")}


# -- allocated by several -------------------------------------------------------------------------


@pytest.fixture(name="shared")
def _shared() -> Iterator[tuple[Arena, Peer]]:
    arena = Arena.create("shared", 16 * MB, shared=True, smallest=64)
    peer = Peer(arena)
    yield arena, peer
    peer.close()
    arena.close()


def test_two_processes_allocate_from_a_shared_arena(shared: tuple[Arena, Peer]) -> None:
    arena, peer = shared
    peer.do("held = [arena.allocate(each) for each in (100, 1000, 100_000)]")
    mine = [arena.allocate(each) for each in (100, 1000, 100_000)]
    for each in mine:
        each[:] = b"m" * len(each)
    peer.do("for each in held: each[:] = b'p' * len(each)")
    assert [set(each) for each in mine] == [{ord("m")}] * 3
    assert blocks(arena) == 6
    peer.kill()
    arena.reclaim(peer.pid)
    assert blocks(arena) == 3


def test_a_killed_process_lets_the_lock_go(shared: tuple[Arena, Peer]) -> None:
    arena, peer = shared
    peer.do("arena._exclusive.__enter__()")
    peer.kill()
    assert len(arena.allocate(100)) == 100


def test_a_stopped_process_holds_nobody_up_for_ever(
    shared: tuple[Arena, Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    arena, peer = shared
    peer.do("arena._exclusive.__enter__()")
    peer.process.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(lock_module, "PATIENCE", 0.05)
    with pytest.raises(TimeoutError, match="stopped"):
        arena.allocate(100)
    peer.process.send_signal(signal.SIGCONT)
    peer.do("arena._exclusive.__exit__()")
    assert len(arena.allocate(100)) == 100


def test_a_forked_child_allocates_from_a_shared_arena_under_a_lock_of_its_own(
    shared: tuple[Arena, Peer],
) -> None:
    arena, _ = shared
    arena.allocate(100)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        arena._exclusive.__enter__()
        os.write(writing, b"!")
        os.close(writing)
        signal.pause()
    os.read(reading, 1)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(lock_module, "PATIENCE", 0.05)
        with pytest.raises(TimeoutError, match="stopped"):
            arena.allocate(100)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert len(arena.allocate(100)) == 100
    os.close(reading)
    os.close(writing)


def test_words_are_the_users(shared: tuple[Arena, Peer]) -> None:
    arena, peer = shared
    assert list(arena.words) == [0] * 16
    peer.do("arena.words[3] = 1 << 63")
    assert arena.words[3] == 1 << 63


# -- several readers, and a borrower that writes ---------------------------------------------------


def test_what_is_published_is_read_in_place_by_all(arena: Arena, peer: Peer) -> None:
    memory = arena.allocate(MB)
    copy(memory, memoryview(data(MB)))
    arena.publish(memory)
    for _ in range(3):
        peer.do(HOLD, packed=peer.payload.pack([memory[5:]]))
    assert arena.usage() == Usage(MB, 0, 64 * MB, 1)
    assert (
        peer.do("answer = [(each.readonly, bytes(each[:9])) for each in held]")
        == [(True, data(9, 5))] * 3
    )
    del memory
    peer.do("del held[1:]")
    assert blocks(arena) == 1
    peer.do("held.clear()")
    assert blocks(arena) == 0


def test_a_reader_that_dies_reads_no_more(arena: Arena, peer: Peer) -> None:
    memory = arena.allocate(MB)
    arena.publish(memory)
    peer.do(HOLD, packed=peer.payload.pack([memory]))
    del memory
    peer.kill()
    arena.reclaim(peer.pid)
    assert blocks(arena) == 0


def test_leases_of_readers_that_ended_are_used_again(
    arena: Arena, ends: tuple[Payload, Payload]
) -> None:
    one, two = ends
    memory = arena.allocate(MB)
    arena.publish(memory)
    for _ in range(1000):
        two.unpack(one.pack([memory, memory]))
    assert arena._fields[arena_module._READERS] <= 2


def test_too_many_readers_are_refused(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena_module, "SLOTS", arena_module.BLOCKS + 3)
    memory = arena.allocate(MB)
    handles = [arena.share(0, 0, 9) for _ in range(3)]
    with pytest.raises(ResourceExhaustedError, match="3 readers hold"):
        arena.share(0, 0, 9)
    arena.drop(handles[1])
    arena.share(0, 0, 9)
    assert len(memory) == MB


def test_an_answer_of_published_memory_is_shared_and_does_not_move(
    arena: Arena, ends: tuple[Payload, Payload]
) -> None:
    memory = arena.allocate(MB)
    copy(memory, memoryview(data(MB)))
    arena.publish(memory)
    answer = [memory]
    del memory
    packed = ends[0].move(answer)
    (found,) = ends[1].unpack(packed)
    assert memoryview(found).readonly
    back = ends[1].move([found])
    assert bytes(ends[0].unpack(back)[0]) == data(MB)


def test_a_block_that_is_used_again_is_not_published(
    arena: Arena, ends: tuple[Payload, Payload]
) -> None:
    arena.publish(memory := arena.allocate(MB))
    where = address_of(memory)
    del memory
    memory = arena.allocate(MB)
    assert address_of(memory) == where
    (found,) = ends[1].unpack(ends[0].pack([memory]))
    assert not memoryview(found).readonly
    assert blocks(arena) == 2


def test_only_memory_of_the_arena_can_be_published_or_lent(arena: Arena) -> None:
    for act in (arena.publish, arena.lend):
        with pytest.raises(ValueError, match="not of a block of this arena"):
            act(memoryview(bytearray(MB)))


def test_read_only_memory_is_found_again_to_build_objects_over_it(
    arena: Arena, ends: tuple[Payload, Payload]
) -> None:
    memory = arena.allocate(MB)
    copy(memory, memoryview(data(MB)))
    arena.publish(memory)
    found = memoryview(ends[1].unpack(ends[0].pack([memory[100:]]))[0])
    assert found.readonly
    assert not writable(found).readonly
    assert bytes(writable(found)) == data(MB)[100:]


def test_a_borrower_writes_to_a_block_and_sends_it_back(arena: Arena, peer: Peer) -> None:
    memory = arena.allocate(MB)
    where = address_of(memory)
    handle = arena.lend(memory, peer.pid)
    del memory
    back = peer.do("m = arena.adopt(h); m[:4] = b'done'; answer = arena.lend(m); del m", h=handle)
    found = arena.adopt(back)
    assert bytes(found[:4]) == b"done"
    assert address_of(found) == where
    assert blocks(arena) == 1
    del found
    assert blocks(arena) == 0


@pytest.mark.parametrize("adopts", [True, False])
def test_what_a_borrower_does_not_send_back_is_free(arena: Arena, peer: Peer, adopts: bool) -> None:
    handle = arena.lend(arena.allocate(MB), peer.pid)
    assert blocks(arena) == 1
    if adopts:
        peer.do("m = arena.adopt(h); del m", h=handle)
    else:
        peer.kill()
        arena.reclaim(peer.pid)
    assert blocks(arena) == 0


# -- payloads -------------------------------------------------------------------------------------


frames = st.lists(
    st.tuples(st.integers(0, 40_000), st.sampled_from([bytes, bytearray, memoryview])), max_size=12
)


@settings(max_examples=60, deadline=None)
@given(frames=frames, limit=st.sampled_from([100, 1000, 32 * KB]), move=st.booleans())
def test_frames_arrive_as_sent(
    frames: list[tuple[int, Callable[[bytes], Any]]], limit: int, move: bool
) -> None:
    arena = Arena.create("frames", 64 * MB, smallest=64)
    here = Payload([arena], 0, limit=limit)
    there = Payload([Arena.attach(arena.fd)], 0)
    sent = [kind(bytes(data(nbytes, nbytes))) for nbytes, kind in frames]
    expected = [bytes(each) for each in sent]
    given: Any = here.move(sent) if move else here.pack(sent)
    packed = marshal.loads(marshal.dumps(given, 2))
    assert len(marshal.dumps(packed, 2)) < limit + 50
    found = there.unpack(packed)
    assert [bytes(each) for each in found] == expected
    del found
    there.arenas[0].close()  # type: ignore[union-attr] # it is there
    assert blocks(arena) == 0
    arena.close()


def test_small_frames_stay_what_they_are(ends: tuple[Payload, Payload]) -> None:
    one, two = ends
    found = two.unpack(one.pack([b"bytes", bytearray(b"array"), memoryview(b"view")]))
    assert found == [b"bytes", b"array", b"view"]
    assert [type(each) for each in found] == [bytes, bytearray, bytearray]


def test_large_frames_are_the_receivers_own(ends: tuple[Payload, Payload]) -> None:
    one, two = ends
    sent = data(MB)
    packed = one.pack([sent])
    sent[:5] = b"after"
    (found,) = two.unpack(packed)
    assert bytes(found) == data(MB)
    memoryview(found)[:5] = b"mine!"
    assert sent[:5] == b"after"


def test_parts_of_one_block_share_it_still(ends: tuple[Payload, Payload]) -> None:
    one, two = ends
    whole = memoryview(two.unpack(one.pack([data(MB)]))[0])
    parts = [whole[: MB // 2], whole[MB // 4 :]]
    del whole
    left, right = [memoryview(each) for each in one.unpack(two.move(parts))]
    right[0] = 77
    assert left[MB // 4] == 77
    assert parts == []
    del left
    assert blocks(one.arenas[0]) == 1  # type: ignore[arg-type] # it is there
    del right
    assert blocks(one.arenas[0]) == 0  # type: ignore[arg-type] # it is there


def test_a_small_part_of_a_block_is_copied(ends: tuple[Payload, Payload]) -> None:
    one, two = ends
    found = memoryview(two.unpack(one.pack([data(MB)]))[0])
    small = [found[: 64 * KB]]
    del found
    packed = two.move(small)
    assert [blocks(each) for each in two.arenas if each] == [0, 1]
    two.drop(packed)


def test_a_block_of_ones_own_moves_too(arena: Arena, ends: tuple[Payload, Payload]) -> None:
    one, two = ends
    mine = [arena.allocate(MB)]
    where = address_of(mine[0]) - arena.mapping.address
    (found,) = two.unpack(one.move(mine))
    assert two.arenas[0] is not None
    assert address_of(memoryview(found)) - two.arenas[0].mapping.address == where
    assert blocks(arena) == 1


def test_of_two_that_return_one_block_each_has_it(ends: tuple[Payload, Payload]) -> None:
    one, two = ends
    found = two.unpack(one.pack([data(MB)]))
    again = found[:]
    first = two.move(found)  # the other refers to it
    second = two.move(again)
    for packed in (first, second):
        assert bytes(one.unpack(packed)[0]) == data(MB)
    assert [blocks(each) for each in two.arenas if each] == [0, 0]


def test_a_block_that_another_thread_moves_is_copied(
    arena: Arena, ends: tuple[Payload, Payload]
) -> None:
    one, two = ends
    found = two.unpack(one.pack([data(MB)]))
    located = two.arenas[0].locate(memoryview(found[0]))  # type: ignore[union-attr] # it is there
    assert located is not None
    lease, _ = located
    assert lease.claim()
    packed = two.move(found)
    assert packed[0][0] == 1  # type: ignore[index] # the number of the arena of the copy
    assert blocks(arena) == 1  # as the other thread has not sent it yet


def test_where_there_is_no_room_nothing_is_packed(
    arena: Arena, ends: tuple[Payload, Payload]
) -> None:
    one, two = ends
    found = two.unpack(one.pack([data(MB)]))
    found += [data(40 * MB), data(40 * MB)]
    with pytest.raises(ResourceExhaustedError):
        two.move(found)
    assert [blocks(each) for each in two.arenas if each] == [1, 0]
    found.clear()
    assert blocks(arena) == 0


def test_without_room_for_a_copy_what_would_have_moved_is_released(
    arena: Arena, ends: tuple[Payload, Payload]
) -> None:
    one, two = ends
    found = two.unpack(one.pack([data(MB), data(2 * MB)]))
    kept = found[1]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(two.arenas[1], "take", _refuse)
        with pytest.raises(ResourceExhaustedError):
            two.move(found)
    assert found == []
    assert blocks(arena) == 1
    assert bytes(kept) == data(2 * MB)
    del kept
    assert blocks(arena) == 0


def _refuse(nbytes: int) -> int:
    raise ResourceExhaustedError("it", "memory", 12, "none")


def test_what_was_received_or_dropped_cannot_be_again(
    arena: Arena, ends: tuple[Payload, Payload]
) -> None:
    one, two = ends
    packed = one.pack([data(MB), data(2 * MB)])
    one.drop(packed)
    assert blocks(arena) == 0
    one.drop(packed)
    with pytest.raises(RuntimeError, match="is not on its way"):
        two.unpack(packed)
    packed = one.pack([data(MB)])
    found = two.unpack(packed)
    one.drop(packed)
    with pytest.raises(RuntimeError, match="is not on its way"):
        two.unpack(packed)
    assert bytes(found[0]) == data(MB)


def test_an_old_message_is_not_taken_for_a_new_one(ends: tuple[Payload, Payload]) -> None:
    one, two = ends
    old = one.pack([data(MB)])
    one.drop(old)
    new = one.pack([data(MB, 7)])  # in the same block
    with pytest.raises(RuntimeError, match="is not on its way"):
        two.unpack(old)
    assert bytes(two.unpack(new)[0]) == data(MB, 7)


def test_what_cannot_be_received_whole_is_let_go(
    arena: Arena, ends: tuple[Payload, Payload]
) -> None:
    one, two = ends
    packed = [*one.pack([data(MB), data(MB)]), *one.pack([data(MB)])]
    two.arenas = [two.arenas[0]]
    with pytest.raises(RuntimeError, match="arena 1"):
        two.unpack((*packed, (1, (0, 1, 0, 5))))
    assert blocks(arena) == 0


def test_many_small_frames_take_one_block(arena: Arena, ends: tuple[Payload, Payload]) -> None:
    one, two = ends
    sent = [data(1000, each) for each in range(1000)]
    packed = one.pack(list(sent))
    assert isinstance(packed, tuple)
    assert two.unpack(packed) == sent
    assert blocks(arena) == 0
    one.drop(packed := one.pack(list(sent)))
    one.drop(packed)
    assert blocks(arena) == 0


def test_strided_memory_arrives_whole(ends: tuple[Payload, Payload]) -> None:
    one, two = ends
    for nbytes in (100, MB):
        (found,) = two.unpack(one.pack([memoryview(data(nbytes))[::2]]))
        assert bytes(found) == data(nbytes)[::2]


def test_bytes_are_counted_not_copies(arena: Arena, peer: Peer) -> None:
    """An echo of 64 MB is one copy: one block is taken on this side, and none on the other."""
    taken: list[int] = []
    take = arena.take
    with pytest.MonkeyPatch.context() as patched:

        def count(nbytes: int) -> int:
            taken.append(nbytes)
            return take(nbytes)

        patched.setattr(arena, "take", count)
        packed = peer.payload.pack([bytearray(32 * MB)])
        back = peer.payload.unpack(peer.do(ECHO, packed=packed))
    assert taken == [32 * MB]
    assert len(memoryview(back[0])) == 32 * MB
    assert peer.own.usage() == Usage(0, 0, peer.own.usage().budget, 0)


# -- where resources are few -----------------------------------------------------------------------


FEW = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
used = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + (200 << 20),) * 2)
own = type(own).create("poor")
"""
FILL = """
kept = []
answer = "all"
while len(kept) < 400:
    try:
        kept.append(own.allocate(1 << 20))
    except OSError as error:
        answer = type(error).__name__, str(error), len(kept)
        break
    kept[-1][:] = bytes(1 << 20)
"""


class TestAsNobody:
    """A process of a user without rights, with 256 descriptors and 200 MB of addresses."""

    @pytest.fixture(name="poor")
    def _poor(self, arena: Arena) -> Iterator[Peer]:
        peer = Peer(arena)
        peer.do(AS_NOBODY + FEW)
        yield peer
        peer.close()

    def test_a_shortage_is_an_error_and_no_kill(self, poor: Peer) -> None:
        name, said, count = poor.do(FILL)
        assert name == "ResourceExhaustedError"
        assert "addresses are taken" in said
        assert 5 < count < 200
        assert poor.do("kept.clear(); answer = own.trim() >> 20") >= count
        assert poor.do(FILL)[2] == count

    def test_blocks_take_no_descriptors(self, arena: Arena, poor: Peer) -> None:
        take = "held += payload.unpack(packed)"
        for turn in range(500):
            poor.do(take, packed=poor.payload.pack([data(40_000, turn)]))
        assert blocks(arena) == 500
        assert poor.do("answer = len(os.listdir('/proc/self/fd'))") < 20


def _fill(arena: Arena, held: list[memoryview]) -> None:
    while True:
        held.append(arena.allocate(MB))
        held[-1][:] = bytes(MB)


def test_in_a_small_control_group_there_is_an_error_and_no_kill() -> None:
    """As far as the files of the group say so, here those of a group of 200 MB."""
    arena = Arena.create("grouped", 1 << 30)
    left = 200 * MB
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(machine, "total", lambda: 200 * MB)
        patched.setattr(machine, "available", lambda: left - resident(arena))
        held: list[memoryview] = []
        with pytest.raises(ResourceExhaustedError, match="nearly used up"):
            _fill(arena, held)
        assert 100 < len(held) < 200 * 15 / 16 + 8
        held.clear()
        assert len(arena.allocate(64 * MB)) == 64 * MB
    arena.close()


def test_what_was_used_within_seconds_is_kept_for_so_long(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    arena.allocate(MB)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 3)
    assert arena.trim(idle=2) == MB
