"""Shared memory where addresses, descriptors or rights are few."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest
from arena_peers import HOLD, MB, Peer, blocks, ramp
from arena_peers import arena as arena
from arena_peers import peer as peer

from pparallel.runtime.shm import Arena, processes

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
