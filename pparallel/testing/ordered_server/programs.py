"""What the threads and members of the ordered server suite's tests run."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pparallel.errors import PeerLostError
from pparallel.interfaces.ordered_server import Found, OrderedServer
from pparallel.testing.history import Operation, Recorder
from pparallel.testing.patience import PATIENCE
from pparallel.testing.threads import in_threads

if TYPE_CHECKING:
    import torch

    from pparallel.builder import Runtime


def compete(server: OrderedServer, who: str, rounds: int) -> list[Operation]:
    """Push, pull and now and then delete, on two keys that others use too; return what was seen."""
    recorder = Recorder(server, who)
    for n in range(rounds):
        key = ("a", "b")[n % 2]
        found = recorder.pull(key)
        newest = None if found is None else found[1]
        recorder.push(key, f"{who}-{n}", (who, n), newest)
        recorder.versions(key)
        recorder.wait(key, newest, 0)
        if n % 5 == 4:
            recorder.pull(key, newest)
            recorder.push(key, f"{who}-{n}-again", newest or (who, n), newest)
        if n % 8 == 7:
            recorder.delete(key)
    return recorder.operations


def count_up(server: OrderedServer, key: str, times: int) -> None:
    """Add 1 to a number, *times* times, against others that do the same."""
    end = time.monotonic() + PATIENCE
    for _ in range(times):
        while True:
            value, version = server.pull(key) or (0, None)
            if server.push(key, value + 1, value + 1, version):
                break
            assert time.monotonic() < end, f"no push to {key!r} succeeds any more"


def compete_as_member(rt: Runtime, rounds: int) -> list[Operation]:
    count_up(rt.ordered_server, "number", rounds)
    operations = compete(rt.ordered_server, rt.name, rounds)
    rt.group().barrier(PATIENCE)
    assert rt.ordered_server.pull("number") == (rounds * rt.world_size,) * 2
    return operations


def read_what_others_pushed(rt: Runtime, rounds: int) -> list[Operation]:
    """Push in turn; when a push has returned, all members look."""
    server, group = Recorder(rt.ordered_server, rt.name), rt.group()
    for n in range(rounds):
        if n % rt.world_size == rt.rank:
            server.push("turn", f"by {rt.name}", n, n - 1)
        group.barrier(PATIENCE)
        server.pull("turn")
        server.pull("turn", n)
        server.versions("turn")
        server.wait("turn", n, 0)
        group.barrier(PATIENCE)
    return server.operations


ENTRIES = 150_000  #: of each tensor of a large value
LAST = 12  #: the last version of what is overwritten


def full_of(number: int) -> dict[str, torch.Tensor]:
    """Return a value of nearly 2 MB that says *number* everywhere."""
    import torch

    return {
        "weight": torch.full((ENTRIES // 100, 100), float(number)),
        "steps": torch.full((ENTRIES,), number),
    }


def number_in(value: dict[str, torch.Tensor]) -> int:
    """Return the number that :func:`full_of` was given; fail if it is not the same everywhere."""
    found = {int(each) for tensor in value.values() for each in (tensor.min(), tensor.max())}
    assert len(found) == 1, f"a value is mixed of those of {sorted(found)}"
    return found.pop()


def overwrite(server: OrderedServer, ready: Callable[[], object]) -> None:
    """Push each version twice: number n under version n // 2."""
    number_in(full_of(0))  # imports what it needs
    ready()
    for number in range(2 * LAST + 2):
        version = number // 2
        prev_version = version - 1 + number % 2
        assert server.push("whole", full_of(number), version, prev_version)


def read_what_is_overwritten(server: OrderedServer, ready: Callable[[], object]) -> None:
    """Read until the last version is there, in all ways: values are whole, and grow."""
    into, before, version = full_of(0), 0, None
    ready()
    ways: list[Callable[[], Found | None]] = [
        lambda: server.wait("whole", version, PATIENCE),
        lambda: server.pull("whole"),
        lambda: server.pull("whole", into=into),
    ]
    for way in itertools.cycle(ways):
        found = way()
        assert found is not None
        number, version = number_in(found[0]), found[1]
        assert number // 2 == version, f"the value {number} came as version {version}"
        assert number >= before, f"the value {number} came after {before}"
        if version == LAST:
            return
        before = number


def overwrite_and_read(rt: Runtime) -> bool:
    """Overwrite in the last member, and read in the others."""
    act = overwrite if rt.rank == rt.world_size - 1 else read_what_is_overwritten
    act(rt.ordered_server, lambda: rt.group().barrier(PATIENCE))
    return True


def share(rt: Runtime) -> list[Any]:
    import torch

    server = rt.ordered_server
    if rt.rank == 0:
        assert server.push(("a", 1), {"x": torch.arange(3.0)}, (1, "one"), None)
    found = server.wait(("a", 1), timeout=PATIENCE)
    assert found is not None
    found[0]["x"] += rt.rank + 1
    rt.group().barrier(PATIENCE)
    again = server.pull(("a", 1))
    assert again is not None
    assert again[0]["x"].tolist() == [0.0, 1.0, 2.0]
    assert server.versions(("a", 1)) == [(1, "one")]
    assert server.keys() == [("a", 1)]
    rt.group().barrier(PATIENCE)
    if rt.rank == rt.world_size - 1:
        assert server.delete(("a", 1))
    rt.group().barrier(PATIENCE)
    assert server.pull(("a", 1)) is None
    return found[0]["x"].tolist()  # type: ignore[no-any-return]


def wait_in_many_threads(rt: Runtime, count: int) -> list[Found | None]:
    server, group = rt.ordered_server, rt.group()
    assert rt.rank != 0 or server.push("go", 0, 0, None)
    assert server.wait("go", timeout=PATIENCE) is not None
    group.barrier(PATIENCE)
    if rt.rank == rt.world_size - 1:
        results: list[Found | None] = []
        pusher = threading.Timer(0.1, server.push, args=("go", "now", 1, 0))
        pusher.start()
        results = in_threads(count, lambda _: server.wait("go", 0, PATIENCE))
        pusher.join()
        return results
    return in_threads(count, lambda _: server.wait("go", 0, PATIENCE))


#: What a member sees of a server to which another pushed, before it left.
KEPT = {
    "pull": "('kept', 2)",
    "wait": "('kept', 2)",
    "conditional pull": "('kept', 2)",
    "versions": "[1, 2]",
    "keys": "['k']",
    "push": "False",
}


def use_after_a_member_left(rt: Runtime) -> dict[str, str]:
    """Return how each use ended: with what was pushed, or with ``PeerLostError``."""
    server, group = rt.ordered_server, rt.group()
    last, lost = rt.members[-1], threading.Event()
    group.when_lost(lambda name, _: lost.set() if name == last else None)
    if rt.name == last:
        assert server.push("k", "old", 1, None)
        assert server.push("k", "kept", 2, 1)
    group.barrier(PATIENCE)
    if rt.name == last:
        return {}
    assert lost.wait(PATIENCE)
    uses: dict[str, Callable[[], object]] = {
        "pull": lambda: server.pull("k"),
        "wait": lambda: server.wait("k", timeout=PATIENCE),
        "conditional pull": lambda: server.wait("k", timeout=0),
        "versions": lambda: server.versions("k"),
        "keys": server.keys,
        "push": lambda: server.push("k", "refused", 3, 1),
    }
    found = {name: _outcome(use) for name, use in uses.items()}
    group.meet("used", PATIENCE)
    return found


def _outcome(use: Callable[[], object]) -> str:
    try:
        return repr(use())
    except PeerLostError:
        return "PeerLostError"
