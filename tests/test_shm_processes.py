"""Shared memory between processes, some of which are killed."""

from __future__ import annotations

import errno
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from pparallel.runtime.shm import Arena, Parcel, Parcels, processes
from pparallel.testing.patience import PATIENCE, until

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from shm_peer import receive, send  # noqa: E402

KB, MB = 1 << 10, 1 << 20


def ramp(nbytes: int, start: int = 0) -> bytes:
    return (np.arange(start, start + nbytes) % 251).astype(np.uint8).tobytes()


class Peer:
    """A process that does what it is told, with arenas of this one; see ``shm_peer.py``."""

    def __init__(self, *arenas: Arena) -> None:
        self.channel, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel.settimeout(PATIENCE)
        numbers = [end.fileno(), *(os.dup(each.fd) for each in arenas)]
        command = [sys.executable, str(HERE / "shm_peer.py"), *map(str, numbers)]
        self.process = subprocess.Popen(command, pass_fds=numbers)
        for each in numbers[1:]:
            os.close(each)
        end.close()
        self.pid, (descriptor,) = receive(self.channel)
        self.own = Arena.attach(descriptor)
        os.close(descriptor)
        # As the peer sees it: its own arena comes after those that it was given.
        self.parcels = Parcels(arenas[0] if arenas else None, {len(arenas): self.own})

    def tell(self, line: str, parcel: Parcel | None = None, **values: Any) -> None:
        fds = []
        if parcel is not None:
            values["head"], fds = parcel.head(), parcel.fds
        send(self.channel, (line, values), fds)
        for each in fds:
            os.close(each)

    def do(self, line: str, parcel: Parcel | None = None, **values: Any) -> Any:
        self.tell(line, parcel, **values)
        return self.answer()[0]

    def answer(self) -> tuple[Any, list[int]]:
        return receive(self.channel)

    def back(self, parcel: Parcel, line: str) -> list[Any]:
        """Send a parcel, have it answered, and return what came."""
        self.tell(line, parcel)
        return self.parcels.unpack(*self.answer())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.channel.close()
        try:
            self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self.process.wait()
        self.own.close()


HOLD = "held += parcels.unpack(head, fds); answer = [bytes(each[:9]) for each in held]"
ECHO = """
buffers = parcels.unpack(head, fds)
parcel = parcels.pack(buffers, move=True)
del buffers
reply(parcel)
parcels.settle()
answer = globals()
"""
KEEP = """
held += parcels.unpack(head, fds)
reply(parcels.pack(held, move=True))
answer = globals()
"""


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena.create(budget=512 * MB)
    yield made
    made.close()


@pytest.fixture
def peer(arena: Arena) -> Iterator[Peer]:
    made = Peer(arena)
    yield made
    made.close()


def blocks(arena: Arena) -> int:
    return arena.usage().blocks


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
    for peer in peers:
        peer.close()
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


# -- deaths ---------------------------------------------------------------------------------------

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


# -- limits ---------------------------------------------------------------------------------------

LIMITED = """
import resource, sys
from pparallel.runtime.shm import Arena, Parcels
limit = int(sys.argv[1])
if limit:
    resource.setrlimit(getattr(resource, sys.argv[2]), (limit, limit))
arena = Arena.create()
other = Arena.attach(arena.fd)
parcels = Parcels(arena, {})
kept = []
for turn in range(60):
    (found,) = Parcels(None, {0: other}).unpack(*sent(parcels.pack([bytes([turn]) * (1 << 20)])))
    assert bytes(found) == bytes([turn]) * (1 << 20)
    kept.append(found)
assert [each[0] for each in kept] == list(range(60))
print(arena.ledger.span, arena.usage().blocks)
"""
SENT = """
import os
def sent(parcel):
    return parcel.head(), parcel.fds
"""


@pytest.mark.parametrize("kind", ["RLIMIT_AS", "RLIMIT_FSIZE"])
def test_with_few_addresses_the_arena_is_small_and_the_rest_goes_through_files(kind: str) -> None:
    limit = {"RLIMIT_AS": 400 * MB, "RLIMIT_FSIZE": 40 * MB}[kind]
    command = [sys.executable, "-c", SENT + LIMITED, str(limit), kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    span, found = map(int, done.stdout.split())
    assert span < limit
    assert 5 < found < 60
    assert done.stderr.count("no room for") == 1


def test_whoever_cannot_be_looked_at_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it holds must not be given to another because descriptors are out for a moment."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(processes, "open", refuse, raising=False)
    assert processes.lives(os.getpid())
    assert processes.lives(1 << 30)


def test_a_low_limit_of_descriptors_is_no_limit_of_blocks(arena: Arena, peer: Peer) -> None:
    resource_line = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir('/proc/self/fd')), 4096))
"""
    peer.do(resource_line)
    for turn in range(100):
        parcel = peer.parcels.pack([ramp(20_000, turn)])
        assert len(peer.do(HOLD, parcel)) == turn + 1
    assert blocks(arena) == 100
