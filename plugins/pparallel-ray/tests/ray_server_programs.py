"""What members and other programs run in the tests of the ordered server on Ray."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

import pparallel
from pparallel.errors import PeerLostError
from pparallel_ray import RayOrderedServerConfig
from pparallel_ray.cluster import RayConnection

if TYPE_CHECKING:
    from pparallel import Runtime


def keeper_of(server: Any) -> Any:
    """Return the actor, to do to it what happens to actors."""
    return server._client._actor


def kill_keeper(server: Any) -> None:
    """Have the process of the actor be killed, as the system does when memory runs out."""
    import ray

    actor = keeper_of(server)
    # What runs in an actor's process without being one of its methods.
    pid = ray.get(actor.__ray_call__.remote(lambda _: os.getpid()))
    os.kill(pid, signal.SIGKILL)


def lose_the_keeper(rt: Runtime) -> list[str]:
    """Wait, push and pull as the actor is killed; return what comes of each."""
    server, group = rt.ordered_server, rt.group()
    if rt.rank == 0:
        assert server.push("k", 1, 1, None)
    group.barrier()
    found: list[str] = []

    def wait() -> None:
        try:
            found.append(str(server.wait("k", 1)))
        except PeerLostError:
            found.append("lost")

    waiter = threading.Thread(target=wait)
    waiter.start()
    group.barrier()
    if rt.rank == 0:
        kill_keeper(server)
    waiter.join()
    for use in (lambda: server.pull("k"), lambda: server.push("k", 2, 2, 1), server.keys):
        try:
            found.append(str(use()))
        except PeerLostError:
            found.append("lost")
    return found


def count_and_leave(rt: Runtime, rounds: int, size: int) -> int:
    """Add to one counter with all others; then see what the last member pushed before it ended."""
    server, group = rt.ordered_server, rt.group()
    for _ in range(rounds):
        while True:
            value, version = server.pull("n") or (0, None)
            if server.push("n", value + 1, value + 1, version):
                break
    group.barrier()
    assert server.pull("n") == (rounds * rt.world_size,) * 2
    last = rt.world_size - 1
    if rt.rank == last:
        assert server.push("large", bytes(size), 1, None)
        group.barrier()
        return 0
    group.barrier()
    while rt.members[last] in rt.transport.members():
        assert server.pull("large") is not None
    found = server.pull("large")
    assert found is not None
    return len(found[0])


def use_named(address: str, name: str, value: str) -> None:
    """Be another program that knows a server by its name: say what it held, and push to it."""
    config = RayOrderedServerConfig(
        cluster=RayConnection(address=address), name=name, detached=True
    )
    with pparallel.build(config) as server:
        held = server.pull("k")
        print(held)  # noqa: T201
        assert server.push("k", value, value, None if held is None else held[1])


if __name__ == "__main__":
    use_named(*sys.argv[1:])
