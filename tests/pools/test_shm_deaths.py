"""Processes that share memory, and die."""

from __future__ import annotations

import os
import signal

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
