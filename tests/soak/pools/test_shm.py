"""Shared memory that many processes use at once, some of which are killed."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterable

import psutil
from arena_peers import ECHO, KB, MB, Peer, blocks, ramp
from arena_peers import arena as arena
from arena_peers import peer as peer

from pparallel.runtime.shm import Arena
from pparallel.testing.patience import PATIENCE

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


def test_processes_are_killed_at_any_instant(rounds: Iterable[random.Random]) -> None:
    arena = Arena.create(shared=True, budget=8 * MB, smallest=64)
    peers: list[Peer] = []
    pids = []
    try:
        for dice in rounds:
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


def test_any_number_of_echoes(arena: Arena, peer: Peer, rounds: Iterable[random.Random]) -> None:
    for rng in rounds:
        for turn in range(1000):
            nbytes = 50 if turn % 3 else rng.randrange(1, 200 * KB)
            found = peer.back(peer.parcels.pack([b"x", ramp(nbytes, turn)]), ECHO)
            assert bytes(found[1]) == ramp(nbytes, turn)
        found.clear()
        assert blocks(arena) == 0
        assert arena.usage().free <= 2 * MB


def test_memory_stays_flat_over_echoes_of_64_mb(
    arena: Arena, peer: Peer, rounds: Iterable[random.Random]
) -> None:
    source = bytearray(64 * MB)
    here, there = psutil.Process(), psutil.Process(peer.pid)

    def measured(count: int) -> int:
        for turn in range(count):
            source[turn] = turn % 251
            found = peer.back(peer.parcels.pack([source]), ECHO)
            assert found[0][turn] == turn % 251
        return int(here.memory_info().rss + there.memory_info().rss)

    before = measured(5)
    for _ in rounds:
        assert measured(20) - before < 32 * MB
        assert arena.usage().free <= 128 * MB  # one travels while the last is held
    arena.trim()
    assert os.fstat(arena.fd).st_blocks * 512 < 4 * MB


def test_many_threads_send_to_many_processes(rounds: Iterable[random.Random]) -> None:
    arena = Arena.create(budget=256 * MB)
    peers = [Peer(arena) for _ in range(3)]
    failures = []

    def work(peer: Peer, start: int) -> None:
        for turn in range(100):
            wanted = ramp(20_000 + 1000 * turn, start + turn)
            if bytes(peer.back(peer.parcels.pack([wanted]), ECHO)[0]) != wanted:
                failures.append(turn)

    for _ in rounds:
        threads = [
            threading.Thread(target=work, args=(peer, 1000 * number))
            for number, peer in enumerate(peers)
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join(PATIENCE * 5)
        assert not failures
    for each_peer in peers:
        each_peer.close()
    assert blocks(arena) == 0
    arena.close()
