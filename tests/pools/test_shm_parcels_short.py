"""Parcels where memory is short, and parcels of strangers."""

from __future__ import annotations

import errno
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from descriptors import few_descriptors
from parcel_ends import MB, Ends, echo, ramp, sent
from parcel_ends import ends as ends
from typing_extensions import Buffer

from pparallel.runtime.shm import Arena, Parcels
from pparallel.runtime.shm.heads import HEAD
from pparallel.testing.patience import PATIENCE

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


def test_without_descriptors_there_is_a_clear_error_and_nothing_is_leaked(short: Ends) -> None:
    with few_descriptors(), pytest.raises(OSError, match=r"raise ulimit -n") as caught:
        short.here.pack([ramp(MB), ramp(5 * MB)])
    assert caught.value.errno == errno.EMFILE
    assert short.blocks() == [0, 0]


def test_without_descriptors_a_file_that_came_is_read(short: Ends) -> None:
    head, fds = sent(short.here.pack([ramp(5 * MB)]))
    with few_descriptors():
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
