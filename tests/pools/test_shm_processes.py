"""Shared memory between processes, some of which are killed."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable

import psutil
from arena_peers import ECHO, HOLD, KB, KEEP, MB, Peer, blocks, ramp
from arena_peers import arena as arena
from arena_peers import peer as peer

from pparallel.runtime.shm import Arena
from pparallel.testing.patience import PATIENCE

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


def test_ten_thousand_echoes(arena: Arena, peer: Peer, scale: Callable[[int], int]) -> None:
    for turn in range(scale(10_000)):
        nbytes = 50 if turn % 3 else random.randrange(1, 200 * KB)
        found = peer.back(peer.parcels.pack([b"x", ramp(nbytes, turn)]), ECHO)
        assert bytes(found[1]) == ramp(nbytes, turn)
    found.clear()
    assert blocks(arena) == 0
    assert arena.usage().free <= 2 * MB


def test_memory_stays_flat_over_echoes_of_64_mb(
    arena: Arena, peer: Peer, scale: Callable[[int], int]
) -> None:
    source = bytearray(64 * MB)
    here, there = psutil.Process(), psutil.Process(peer.pid)

    def rounds(count: int) -> int:
        for turn in range(count):
            source[turn] = turn % 251
            found = peer.back(peer.parcels.pack([source]), ECHO)
            assert found[0][turn] == turn % 251
        return int(here.memory_info().rss + there.memory_info().rss)

    before = rounds(5)
    assert rounds(scale(1000)) - before < 16 * MB
    assert arena.usage().free <= 128 * MB  # one travels while the last is held
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


def test_many_threads_send_to_many_processes(scale: Callable[[int], int]) -> None:
    arena = Arena.create(budget=256 * MB)
    peers = [Peer(arena) for _ in range(3)]
    failures = []

    def work(peer: Peer, start: int) -> None:
        for turn in range(scale(500)):
            wanted = ramp(20_000 + 1000 * (turn % 100), start + turn)
            if bytes(peer.back(peer.parcels.pack([wanted]), ECHO)[0]) != wanted:
                failures.append(turn)

    threads = [
        threading.Thread(target=work, args=(peer, 1000 * number))
        for number, peer in enumerate(peers)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join(PATIENCE * 5)
    for each_peer in peers:
        each_peer.close()
    assert not failures
    assert blocks(arena) == 0
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
