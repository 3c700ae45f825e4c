"""The arena: blocks given out and taken back, in one process."""

from __future__ import annotations

import array
import ctypes
import gc
import logging
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from pparallel.errors import ClosedError
from pparallel.runtime.shm import Arena, Block
from pparallel.runtime.shm.sizes import CAPACITIES, LARGEST, SMALLEST, class_of
from pparallel.testing.patience import PATIENCE

KB, MB = 1 << 10, 1 << 20


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena.create("test", budget=64 * MB)
    yield made
    made.close()


def lease(arena: Arena, nbytes: int) -> Block:
    block = arena.allocate(nbytes)
    assert block is not None, arena.shortage
    return block


# -- size classes ---------------------------------------------------------------------------------


def test_every_size_has_the_smallest_class_that_holds_it() -> None:
    assert sorted(CAPACITIES) == CAPACITIES
    assert CAPACITIES[0] == SMALLEST
    assert CAPACITIES[-1] == LARGEST
    for index, capacity in enumerate(CAPACITIES):
        assert class_of(capacity) == index
        assert class_of(capacity - 1) == index
        if capacity < LARGEST:
            assert class_of(capacity + 1) == index + 1


def test_a_block_of_many_bytes_wastes_an_eighth_at_most() -> None:
    for nbytes in (MB + 1, 3 * MB + 7, 64 * MB, 100 * MB, 999 * MB, 33 * KB * MB + 1):
        assert nbytes <= CAPACITIES[class_of(nbytes)] <= nbytes * 9 / 8 + 128 * KB


# -- blocks ---------------------------------------------------------------------------------------


def test_a_block_keeps_what_is_written_to_it(arena: Arena) -> None:
    blocks = [lease(arena, 100_000) for _ in range(5)]
    views = [block.view() for block in blocks]
    for index, view in enumerate(views):
        view[:] = bytes([index]) * 100_000
    assert [bytes(view) for view in views] == [bytes([each]) * 100_000 for each in range(5)]


def test_a_block_is_free_when_its_last_view_dies(arena: Arena) -> None:
    view = lease(arena, MB).view()
    part = view[10:20]
    del view
    assert arena.usage().blocks == 1
    del part
    assert arena.usage().blocks == 0
    assert arena.usage().free == MB


MADE_OF_A_VIEW: dict[str, Callable[[memoryview], object]] = {
    "tensor": lambda view: torch.frombuffer(view, dtype=torch.float32)[5:],
    "tensor of an array": lambda view: torch.from_numpy(np.frombuffer(view, dtype=np.float32)),
    "array": lambda view: np.frombuffer(view[:400], dtype=np.int64)[3:].reshape(1, -1),
    "part": lambda view: memoryview(view[:100])[:50],
    "buffer": lambda view: pickle.PickleBuffer(view),
    "characters": lambda view: (ctypes.c_char * 10).from_buffer(view, 7),
}


def test_whatever_is_made_of_a_view_keeps_the_block(arena: Arena) -> None:
    for kind, make in MADE_OF_A_VIEW.items():
        thing = make(lease(arena, MB).view())
        assert arena.usage().blocks == 1, kind
        other = lease(arena, MB)
        assert other.slot == 1, kind
        other.release()
        del thing
        assert arena.usage().blocks == 0, kind
    cycle: dict[str, object] = {"view": lease(arena, MB).view()}
    cycle["itself"] = cycle
    del cycle
    assert arena.usage().blocks == 1
    gc.collect()
    assert arena.usage().blocks == 0


def test_freed_blocks_are_used_again(arena: Arena) -> None:
    for _ in range(1000):
        lease(arena, 10 * MB).view()[::4096] = bytes(2560)
    assert arena.usage().free == 10 * MB


def test_a_block_that_was_released_is_used_again(arena: Arena) -> None:
    first = lease(arena, 20_000)
    first.release()
    assert lease(arena, 20_000).slot == first.slot


def test_small_blocks_lie_side_by_side() -> None:
    arena = Arena.create(budget=MB, smallest=64)
    views = [lease(arena, 60).view() for _ in range(3 * 64)]
    for index, view in enumerate(views):
        view[:] = bytes([index]) * 60
    assert [view[59] for view in views] == list(range(3 * 64))
    assert arena.usage().leased == 3 * 4096
    arena.close()


def test_writing_beyond_a_block_is_refused(arena: Arena) -> None:
    block = lease(arena, 100)
    block.write(b"x" * 50, 50)
    with pytest.raises(ValueError, match="51 bytes at 50 do not fit a block of 100"):
        block.write(b"x" * 51, 50)
    assert bytes(block.view()[50:]) == b"x" * 50


def test_read_only_and_strided_sources(arena: Arena) -> None:
    block = lease(arena, 4 * MB)
    block.write(array.array("i", range(MB)))
    block.write(bytes(2 * MB), at=2 * MB)
    block.write(memoryview(b"abc"), at=1)
    found = block.view()
    assert bytes(found[:8]) == b"\0abc\1\0\0\0"
    assert bytes(found[2 * MB :]) == bytes(2 * MB)


# -- limits ---------------------------------------------------------------------------------------


def test_over_budget_there_is_no_block(arena: Arena) -> None:
    held = [lease(arena, 16 * MB).view() for _ in range(4)]
    assert arena.allocate(20_000) is None
    assert arena.shortage == f"its budget is {64 * MB} bytes"
    del held[0]
    assert arena.allocate(16 * MB) is not None


def test_free_memory_counts_until_it_is_needed_otherwise(arena: Arena) -> None:
    for _ in range(2):
        lease(arena, 40 * MB).view()
        lease(arena, 20 * MB).view()
        lease(arena, 60 * MB).view()
        assert arena.usage().free <= 64 * MB


def test_a_block_larger_than_all_addresses_is_refused() -> None:
    arena = Arena.create(budget=1 << 50)
    assert arena.allocate(LARGEST + 1) is None
    assert arena.shortage == "no block is as large"
    arena.close()


def test_trim_gives_the_memory_back(arena: Arena) -> None:
    view = lease(arena, 4 * MB).view()
    lease(arena, 32 * MB).view()[::4096] = bytes(32 * MB // 4096)
    assert blocks_in_memory(arena) >= 32 * MB
    view[:] = b"k" * (4 * MB)
    assert arena.trim() == 32 * MB
    assert blocks_in_memory(arena) < 6 * MB
    assert arena.usage().free == 0
    assert bytes(view) == b"k" * (4 * MB)
    assert bytes(lease(arena, 32 * MB).view()[:4096]) == bytes(4096)


def blocks_in_memory(arena: Arena) -> int:
    return os.fstat(arena.fd).st_blocks * 512


def test_every_slot_may_be_taken() -> None:
    arena = Arena.create(budget=1 << 30, smallest=64)
    found = []
    while (block := arena.allocate(64)) is not None:
        found.append(block)
    assert len(found) == 1 << 16
    for block in found:
        block.release()
    assert arena.usage().blocks == 0
    # One of those that exist will do, though they are all of the wrong size.
    large = lease(arena, 30)
    assert large.slot >= 0
    arena.close()


def test_addresses_are_used_again_where_they_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pparallel.runtime.memory.arena.LARGEST", 16 * MB)
    arena = Arena.create(budget=1 << 30)
    lease(arena, 15 * MB).view()
    lease(arena, 14 * MB).view()
    keep = lease(arena, 9 * MB).view()
    assert arena.allocate(9 * MB) is None
    assert arena.shortage.endswith("bytes of addresses are taken")
    assert lease(arena, 20_000).view()[0] == 0
    del keep
    assert lease(arena, 8 * MB).slot >= 0
    arena.close()


def test_where_the_machine_is_short_of_memory_an_arena_does_not_grow(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: list[int] = []

    def look(nbytes: int) -> bool:
        wanted.append(nbytes)
        return False

    monkeypatch.setattr("pparallel.runtime.memory.arena.has_room", look)
    assert arena.allocate(MB) is None
    assert arena.shortage == ("the machine's, or the control group's, memory is nearly used up")
    assert set(wanted) == {MB}
    monkeypatch.setattr("pparallel.runtime.memory.arena.has_room", lambda nbytes: True)
    held = [lease(arena, 30 * MB), lease(arena, MB)]
    monkeypatch.setattr("pparallel.runtime.memory.arena.has_room", look)
    held.pop().release()
    assert arena.allocate(2 * MB) is None
    assert arena.usage().free == 0, "what is free is given back first"
    held.pop().release()
    assert arena.allocate(29 * MB) is not None, "what it has is used still"


# -- closing, threads, attaching ------------------------------------------------------------------


def test_after_close_views_live_on(arena: Arena) -> None:
    view = lease(arena, MB).view()
    view[:5] = b"alive"
    arena.close()
    arena.close()
    assert bytes(view[:5]) == b"alive"
    for call in (
        lambda: arena.allocate(5),
        arena.trim,
        arena.usage,
        lambda: arena.reclaim(1),
    ):
        with pytest.raises(ClosedError, match="the arena is closed"):
            call()


def test_another_attribute_is_an_ordinary_mistake(arena: Arena) -> None:
    with pytest.raises(AttributeError, match="shrink"):
        arena.shrink()


def test_what_is_no_arena_is_refused() -> None:
    descriptor = os.memfd_create("other")
    try:
        with pytest.raises(ValueError, match="is not that of an arena"):
            Arena.attach(descriptor)
        os.write(descriptor, bytes(4096))
        with pytest.raises(ValueError, match="is not that of an arena"):
            Arena.attach(descriptor)
    finally:
        os.close(descriptor)


def test_only_its_maker_allocates_from_an_arena_of_one(arena: Arena) -> None:
    other = Arena.attach(arena.fd)
    assert other.allocate(100) is None
    assert other.shortage == "the arena is another process's"
    assert other.fd == -1
    other.close()


def test_everyone_allocates_from_a_shared_one() -> None:
    arena = Arena.create(shared=True, budget=MB)
    other = Arena.attach(arena.fd)
    blocks = [lease(each, 100) for each in (arena, other) * 8]
    assert [block.slot for block in blocks] == list(range(16))
    other.close()
    arena.close()


def test_a_block_is_adopted_once(arena: Arena) -> None:
    block = lease(arena, MB)
    block.write(b"to you")
    ticket = block.send()
    other = Arena.attach(arena.fd)
    view = other.adopt(ticket)
    assert bytes(view[:6]) == b"to you"
    with pytest.raises(RuntimeError, match=f"held by process {os.getpid()}, is not on its way"):
        other.adopt(ticket)
    del view
    lease(arena, MB).send()
    with pytest.raises(RuntimeError, match="is not on its way"):
        other.adopt(ticket)
    other.close()


def test_reclaim_frees_what_is_held_and_on_its_way(arena: Arena) -> None:
    held = lease(arena, MB)
    sent = lease(arena, MB)
    sent.send()
    arena.reclaim(os.getpid() + 1)
    assert arena.usage().blocks == 2
    arena.reclaim(os.getpid())
    assert arena.usage().blocks == 0
    assert held.slot == 0


def test_many_threads_allocate_and_let_go() -> None:
    arena = Arena.create(budget=256 * MB)
    failures = []

    def work(mark: int) -> None:
        for turn in range(200):
            nbytes = 16 * KB * (1 + turn % 5)
            view = lease(arena, nbytes).view()
            view[:] = bytes([mark]) * nbytes
            if bytes(view) != bytes([mark]) * nbytes:
                failures.append((mark, turn))

    threads = [threading.Thread(target=work, args=(each,)) for each in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(PATIENCE * 5)
    assert not failures
    assert arena.usage().blocks == 0
    arena.close()


def test_importing_it_imports_neither_torch_nor_numpy() -> None:
    code = (
        "import sys; import pparallel.runtime.shm as shm; shm.Arena.create().close();"
        "assert not {'torch', 'numpy', 'pydantic', 'dill'} & set(sys.modules), sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_nothing_is_logged_that_is_not_the_matter(
    arena: Arena, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        lease(arena, MB).view()
    assert not caplog.records
