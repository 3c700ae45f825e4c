"""Blocks that are published, so that others read them where they lie, and blocks that are lent."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from pparallel.runtime.shm import Arena, Parcels, writable

KB, MB = 1 << 10, 1 << 20


class Ends:
    """A sender and two receivers, all in this process."""

    def __init__(self) -> None:
        self.own = Arena.create(budget=64 * MB)
        attached = [Arena.attach(self.own.fd) for _ in range(2)]
        others = [Arena.create(budget=MB) for _ in range(2)]
        self.arenas = [self.own, *attached, *others]
        self.here = [Parcels(self.own, {1: other}) for other in others]
        self.there = [Parcels(other, {0: own}) for other, own in zip(others, attached, strict=True)]

    def memory(self, content: bytes) -> memoryview:
        block = self.own.allocate(len(content))
        assert block is not None
        block.write(content)
        return block.view()

    def sent(self, to: int, memory: memoryview) -> memoryview:
        (found,) = self.there[to].unpack(self.here[to].pack([memory]).head())
        return memoryview(found)


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    for each in made.arenas:
        each.close()


def test_what_is_published_is_read_where_it_lies(ends: Ends) -> None:
    memory = ends.memory(b"a" * MB)
    ends.own.publish(memory)
    before = ends.own.usage().blocks
    found = [ends.sent(to, memory) for to in (0, 1, 0)]
    assert ends.own.usage().blocks == before
    memory[:3] = b"xyz"  # which is not allowed any more, and shows that nothing was copied
    assert {bytes(each[:4]) for each in found} == {b"xyza"}
    assert all(each.readonly for each in found)


def test_what_is_not_published_is_copied(ends: Ends) -> None:
    memory = ends.memory(b"a" * MB)
    found = ends.sent(0, memory)
    memory[:3] = b"xyz"
    assert bytes(found[:4]) == b"aaaa"
    assert not found.readonly


def test_it_is_free_when_all_have_let_go(ends: Ends) -> None:
    memory = ends.memory(b"a" * MB)
    ends.own.publish(memory)
    found = [ends.sent(to, memory) for to in (0, 1)]
    del memory
    ends.own.trim()
    assert bytes(found[1][:2]) == b"aa"
    while found:
        assert ends.own.usage().blocks == 1
        found.pop()
        ends.own.trim()
    assert ends.own.usage().blocks == 0


def test_what_nobody_unpacks_is_let_go(ends: Ends) -> None:
    memory = ends.memory(b"a" * MB)
    ends.own.publish(memory)
    head = ends.here[0].pack([memory]).head()
    del memory
    ends.there[0].drop(head)
    ends.own.trim()
    assert ends.own.usage().blocks == 0


def test_parts_are_sent_where_they_lie(ends: Ends) -> None:
    memory = ends.memory(bytes(range(256)) * 4 * KB)
    ends.own.publish(memory)
    part = ends.sent(0, memory[MB // 2 + 1 : -5])
    assert part == memory[MB // 2 + 1 : -5]
    assert part.readonly
    again = writable(part)
    assert not again.readonly
    assert again == part


def test_a_block_that_is_leased_anew_is_not_published(ends: Ends) -> None:
    memory = ends.memory(b"a" * MB)
    ends.own.publish(memory)
    del memory
    memory = ends.memory(b"b" * MB)
    found = ends.sent(0, memory)
    memory[:3] = b"xyz"
    assert bytes(found[:4]) == b"bbbb"


def test_only_what_an_arena_gave_can_be_published(ends: Ends) -> None:
    other = ends.arenas[-1].allocate(16 * KB)
    assert other is not None
    for memory in (memoryview(bytearray(5)), other.view()):
        with pytest.raises(ValueError, match="only a block of this arena"):
            ends.own.publish(memory)


def test_an_answer_is_shared_and_not_moved(ends: Ends) -> None:
    memory = ends.memory(b"a" * MB)
    ends.own.publish(memory)
    parcel = ends.here[0].pack([memory], move=True)
    (found,) = ends.there[0].unpack(parcel.head())
    assert memoryview(found).readonly
    assert bytes(memory[:2]) == b"aa", "the sender has it still"


# -- loans ----------------------------------------------------------------------------------------


def test_a_loan_is_written_by_one_and_taken_back_by_the_other(ends: Ends) -> None:
    block, me = ends.own.allocate(MB), os.getpid()
    assert block is not None
    ticket = ends.own.lend(block, me)
    ends.arenas[1].borrowed(ticket)[:5] = b"there"
    assert bytes(ends.own.take_back(ticket, me)[:5]) == b"there"
    assert ends.own.usage().blocks == 0, "the view was the last that referred to it"


def test_what_is_not_lent_cannot_be_borrowed_or_taken_back(ends: Ends) -> None:
    block, me = ends.own.allocate(MB), os.getpid()
    assert block is not None
    ticket = ends.own.lend(block, me)
    with pytest.raises(RuntimeError, match="not lent to process"):
        ends.own.take_back(ticket, me + 1)
    ends.own.take_back(ticket, me)
    with pytest.raises(RuntimeError, match="not lent to process"):
        ends.own.take_back(ticket, me)
    with pytest.raises(RuntimeError, match="not lent to process"):
        ends.arenas[1].borrowed(ticket)


def test_a_loan_is_the_borrowers_as_long_as_it_lives(ends: Ends) -> None:
    """One that was given up, but lives, may still be writing."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as borrower:
        block = ends.own.allocate(40 * MB)
        assert block is not None
        ends.own.lend(block, borrower.pid)
        assert ends.own.allocate(40 * MB) is None, "its budget is 64 MB"
        borrower.kill()
    assert ends.own.allocate(40 * MB) is not None
