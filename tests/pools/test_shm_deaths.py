"""Processes that share memory, and die."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable

import pytest
from arena_peers import ECHO, HOLD, MB, Peer, blocks, ramp
from arena_peers import arena as arena
from arena_peers import peer as peer

from pparallel.runtime.shm import Arena
from pparallel.testing.patience import until

DYING = {
    "holding": HOLD,
    "before it unpacks": "pass",
    "its answer packed, not sent": """
held += parcels.unpack(head, fds)
parcel = parcels.pack(held, move=True)
""",
    "its answer sealed": """
buffers = parcels.unpack(head, fds)
parcel = parcels.pack(buffers, move=True)
del buffers
parcel.seal()
""",
    "retaining": """
held += parcels.unpack(head, fds)
parcels.pack(held, move=True).seal()
""",
    "viewing a part": "held.append(memoryview(parcels.unpack(head, fds)[1])[5:9])",
}


@pytest.mark.parametrize("moment", DYING)
def test_what_a_process_that_dies_held_is_free(arena: Arena, peer: Peer, moment: str) -> None:
    parcel = peer.parcels.pack([b"s", ramp(MB), ramp(2 * MB)])
    peer.do(DYING[moment], parcel)
    peer.kill()
    peer.parcels.drop(parcel.head())
    arena.reclaim(peer.pid)
    assert blocks(arena) == 0
    again = peer.parcels.pack([ramp(MB)])
    assert arena.usage().leased == MB
    peer.parcels.drop(again.head())


def test_an_answer_outlives_its_sender(arena: Arena, peer: Peer) -> None:
    peer.tell(ECHO, peer.parcels.pack([ramp(MB)]))
    peer.tell("reply(parcels.pack([bytes(range(256)) * 4096])); answer = globals()")
    first, second = peer.answer(), peer.answer()
    peer.kill()
    found = [*peer.parcels.unpack(*first), *peer.parcels.unpack(*second)]
    arena.reclaim(peer.pid)
    assert [bytes(each) for each in found] == [ramp(MB), bytes(range(256)) * 4096]
    assert blocks(arena) == 1


def test_every_reader_of_a_shared_block_is_killed_in_turn(arena: Arena) -> None:
    peers = [Peer(arena) for _ in range(3)]
    try:
        block = arena.allocate(MB)
        assert block is not None
        block.write(ramp(MB))
        for peer, part in zip(peers, arena.share(block, len(peers)), strict=True):
            line = "held.append(arenas[0].adopt(ticket)); answer = bytes(held[0][:9])"
            assert peer.do(line, ticket=part.send()) == ramp(9)
        view = block.view()
        for peer in peers:
            assert bytes(view) == ramp(MB)
            peer.kill()
            arena.reclaim(peer.pid)
            assert blocks(arena) == 1
        del view
        arena.reclaim(1)
        assert blocks(arena) == 0
    finally:
        for peer in peers:
            peer.close()


@pytest.mark.parametrize("first", ["the owner", "the readers"])
def test_the_owner_and_the_readers_of_a_block_die(first: str) -> None:
    arena = Arena.create(shared=True, budget=64 * MB)
    owner, reader, other = peers = [Peer(arena) for _ in range(3)]
    try:
        line = """
block = arenas[0].allocate(1 << 20)
block.write(b'news')
answer = [each.send() for each in arenas[0].share(block, 2)]
held.append(block.view())
"""
        tickets = owner.do(line)
        for peer, ticket in zip((reader, other), tickets, strict=True):
            peer.do("held.append(arenas[0].adopt(ticket))", ticket=ticket)
        for peer in peers if first == "the owner" else reversed(peers):
            assert blocks(arena) == 1
            peer.kill()
            arena.reclaim(peer.pid)
        assert blocks(arena) == 0
    finally:
        for peer in peers:
            peer.close()
        arena.close()


def test_where_room_is_short_the_dead_are_found_without_being_told() -> None:
    arena = Arena.create(shared=True, budget=4 * MB)
    peer = Peer(arena)
    try:
        peer.do("held.append(arenas[0].allocate(3 << 20).view())")
        assert arena.allocate(2 * MB) is None
        os.kill(peer.pid, signal.SIGKILL)
        until(lambda: arena.allocate(2 * MB) is not None, "the dead one's block was free")
        assert blocks(arena) == 1
    finally:
        peer.close()
        arena.close()


def test_a_message_of_a_dead_sender_is_not_taken_for_room() -> None:
    arena = Arena.create(shared=True, budget=4 * MB)
    peer = Peer(arena)
    try:
        line = (
            "block = arenas[0].allocate(3 << 20); block.write(b'last words'); answer = block.send()"
        )
        ticket = peer.do(line)
        peer.kill()
        assert arena.allocate(2 * MB) is None
        assert bytes(arena.adopt(ticket)[:10]) == b"last words"
        assert arena.allocate(2 * MB) is not None
    finally:
        peer.close()
        arena.close()


def test_a_process_that_was_stopped_in_the_middle_does_not_hang_the_others() -> None:
    arena = Arena.create(shared=True, budget=4 * MB)
    peer = Peer(arena)
    try:
        peer.do("arenas[0]._mutex.acquire(1)")
        os.kill(peer.pid, signal.SIGSTOP)
        assert arena.allocate(100) is None
        assert "stopped" in arena.shortage
        for _ in range(10):
            assert arena.allocate(100) is None
        os.kill(peer.pid, signal.SIGCONT)
        peer.do("arenas[0]._mutex.release()")
        assert arena.allocate(100) is not None
        peer.do("arenas[0]._mutex.acquire(1)")
        peer.kill()
        assert arena.allocate(100) is not None
    finally:
        peer.close()
        arena.close()


CHURN = """
import random
shared, blocks = arenas[0], {}
while True:
    if len(blocks) < 20 and random.random() < 0.6:
        size = random.choice([100, 5000, 20_000, 300_000])
        block = shared.allocate(size)
        if block is not None:
            mark = os.urandom(4)
            view = block.view()
            view[:4], view[-4:] = mark, mark
            blocks[mark] = view
    elif blocks:
        mark = random.choice(list(blocks))
        view = blocks.pop(mark)
        assert bytes(view[:4]) == bytes(view[-4:]) == mark, "somebody else wrote to it"
        del view
    if random.random() < 0.01:
        shared.trim()
"""


def test_processes_are_killed_at_any_instant(scale: Callable[[int], int]) -> None:
    arena = Arena.create(shared=True, budget=8 * MB, smallest=64)
    dice = random.Random(4)
    peers: list[Peer] = []
    pids = []
    try:
        for _ in range(scale(50) + 5):
            while len(peers) < 3:
                peers.append(Peer(arena))
                peers[-1].tell(CHURN)
                pids.append(peers[-1].pid)
            view, mark = arena.allocate(5000), os.urandom(4)
            if view is not None:
                view.write(mark)
            threading.Event().wait(dice.random() * 0.05)
            victim = peers.pop(dice.randrange(len(peers)))
            assert victim.process.poll() is None, "a block was given to two"
            victim.kill()
            victim.close()
            if view is not None:
                assert bytes(view.view()[:4]) == mark
        survivors = [each.process.poll() for each in peers]
        assert survivors == [None] * len(peers), "a block was given to two"
    finally:
        for each in peers:
            each.kill()
            each.close()
    assert found_room(arena), "what the dead held is used"
    for pid in pids:
        arena.reclaim(pid)
    assert blocks(arena) == 0
    arena.close()


def found_room(arena: Arena) -> bool:
    """Whether the whole budget can be had, which needs all that the dead held."""
    block = arena.allocate(7 * MB)
    if block is None:
        return False
    block.release()
    return True
