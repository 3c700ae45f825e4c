"""Shared memory between processes, some of which are killed."""

from __future__ import annotations

import os

from arena_peers import ECHO, HOLD, KB, KEEP, MB, Peer, blocks, ramp
from arena_peers import arena as arena
from arena_peers import peer as peer

from pparallel.runtime.shm import Arena

# -- there and back -------------------------------------------------------------------------------


def test_what_is_sent_arrives_and_is_freed_by_the_receiver(arena: Arena, peer: Peer) -> None:
    parcel = peer.parcels.pack([b"small", ramp(MB)])
    assert peer.do(HOLD, parcel) == [b"small", ramp(9)]
    assert blocks(arena) == 1
    assert peer.do("held.clear(); answer = len(held)") == 0
    assert blocks(arena) == 0


def test_an_echo_moves_and_does_not_copy(arena: Arena, peer: Peer) -> None:
    found = peer.back(peer.parcels.pack([b"small", ramp(MB)]), ECHO)
    assert [bytes(each) for each in found] == [b"small", ramp(MB)]
    assert (blocks(arena), blocks(peer.own)) == (1, 0)
    found.clear()
    assert blocks(arena) == 0


def test_what_the_receiver_retains_comes_back_as_a_copy(arena: Arena, peer: Peer) -> None:
    found = peer.back(peer.parcels.pack([ramp(MB)]), KEEP)
    assert (blocks(arena), blocks(peer.own)) == (1, 1)
    found[0][:5] = b"mine!"
    assert peer.do("answer = bytes(held[0][:5])") == ramp(5)
    peer.do("held.clear()")
    assert blocks(arena) == 1
    peer.do("parcels.settle()")
    assert blocks(arena) == 0
    found.clear()
    assert blocks(peer.own) == 0


def test_a_hundred_echoes_leave_nothing(arena: Arena, peer: Peer) -> None:
    for turn in range(100):
        nbytes = turn * 2 * KB
        found = peer.back(peer.parcels.pack([b"x", ramp(nbytes, turn)]), ECHO)
        assert bytes(found[1]) == ramp(nbytes, turn)
    found.clear()
    assert blocks(arena) == 0
    assert arena.usage().free <= 2 * MB
    arena.trim()
    assert os.fstat(arena.fd).st_blocks * 512 < 4 * MB


def test_over_budget_both_ways_go_through_files() -> None:
    arena = Arena.create(budget=MB)
    peer = Peer(arena)
    wanted = [b"s", ramp(2 * MB), ramp(30_000), ramp(3 * MB)]
    try:
        for _ in range(3):
            assert [bytes(each) for each in peer.back(peer.parcels.pack(wanted), ECHO)] == wanted
    finally:
        peer.close()
        arena.close()


# -- forks ----------------------------------------------------------------------------------------


def test_a_forked_child_lets_nothing_of_its_parent_go(arena: Arena, peer: Peer) -> None:
    peer.do(HOLD, peer.parcels.pack([ramp(MB)]))
    fork = """
    child = os.fork()
    if not child:
        held.clear()
        os._exit(len(held))
    answer = os.waitpid(child, 0)[1]
    """
    assert peer.do("\n".join(line.strip("\n")[4:] for line in fork.splitlines())) == 0
    assert blocks(arena) == 1
    assert peer.do("answer = bytes(held[0])[:9]") == ramp(9)
    peer.do("held.clear()")
    assert blocks(arena) == 0


def test_a_forked_child_allocates_nothing_from_an_arena_of_its_parent(peer: Peer) -> None:
    fork = """
    child = os.fork()
    if not child:
        os._exit(own.allocate(100) is None)
    answer = os.waitpid(child, 0)[1] >> 8
    """
    assert peer.do("\n".join(line.strip("\n")[4:] for line in fork.splitlines())) == 1
    assert blocks(peer.own) == 0


def test_a_forked_child_allocates_from_a_shared_arena() -> None:
    arena = Arena.create(shared=True, budget=64 * MB)
    peer = Peer(arena)
    fork = """
    shared = arenas[0]
    shared._lock.acquire()
    import threading
    done = threading.Thread(target=shared._lock.acquire, daemon=True)
    done.start()
    child = os.fork()
    if not child:
        held.append(shared.allocate(100).view())
        os._exit(shared.usage().blocks)
    answer = os.waitpid(child, 0)[1] >> 8
    shared._lock.release()
    """
    try:
        assert peer.do("\n".join(line.strip("\n")[4:] for line in fork.splitlines())) == 1
    finally:
        peer.close()
        arena.close()
