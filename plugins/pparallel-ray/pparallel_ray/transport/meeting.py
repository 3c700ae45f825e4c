"""Where the members of a job meet: at an actor that has a name in a cluster."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from typing_extensions import override

from pparallel.errors import CallTimeoutError, ConfigError
from pparallel.runtime.member import Member
from pparallel_ray.cluster.config import RayConnection
from pparallel_ray.transport.broker import NAMESPACE, Broker

PAUSE = 0.05  #: seconds between two looks for a broker that is not there yet
MANY = 1_000_000  #: calls of the broker at once; each member keeps a few waiting

_REFUSED = ("torchrun://", "tcp://", "file://")


class Place(NamedTuple):
    """A meeting's address.

    Attributes:
        cluster: of Ray, as ``host:port``; empty: the one that the config says.
        name: of the actor.
    """

    cluster: str
    name: str

    @classmethod
    def new(cls, cluster: str) -> Place:
        """Return where nobody has met before."""
        return cls(cluster, f"job-{secrets.token_hex(8)}")

    @classmethod
    def of(cls, member: Member) -> Place:
        """Return where *member* is to meet the others.

        Raises:
            ConfigError: nothing says where, or what does is not for Ray.
        """
        address = member.rendezvous or ""
        cluster, _, name = address.rpartition("/")
        if not name or address.startswith(_REFUSED):
            found = f"{address!r} is none" if address else "nothing says where"
            message = (
                f"the {member.world_size} members are to meet in a Ray cluster, and {found}: start "
                "them with pparallel.launch and launcher ray, process or thread, or give each "
                "Member(..., rendezvous='HOST:PORT/NAME'), the cluster's address and any name"
            )
            raise ConfigError(message, path="transport")
        return cls(cluster, name)

    def connection(self, given: RayConnection) -> RayConnection:
        """Return how to reach the cluster."""
        return given.model_copy(update={"address": self.cluster}) if self.cluster else given

    @override
    def __str__(self) -> str:
        return f"{self.cluster}/{self.name}" if self.cluster else self.name


def start(place: Place | None, names: Sequence[str], limit: int) -> Any:
    """Return a new broker, on this machine; it ends with this process at the latest.

    Args:
        place: where it can be found; ``None``: nowhere.
        names: of the members whose mailboxes it has.
        limit: bytes in a mailbox from which on a push is answered late.
    """
    here = ray.get_runtime_context().get_node_id()
    options: dict[str, Any] = {
        "num_cpus": 0,
        "max_restarts": 0,
        "max_task_retries": 0,
        "max_concurrency": MANY,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(here, soft=True),
    }
    if place is not None:
        options |= {"name": place.name, "namespace": NAMESPACE, "get_if_exists": True}
    return ray.remote(Broker).options(**options).remote(list(names), limit)


def find(
    place: Place, member: Member, limit: int, timeout: float, check: Callable[[], None]
) -> Any:
    """Return the broker; the first of members that nobody has launched starts it.

    Raises:
        CallTimeoutError: it was not there within *timeout* seconds.
        ClosedError: *check*, which is called now and then, raised it.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            return ray.get_actor(place.name, NAMESPACE)
        except ValueError:
            if member.rank == 0:
                return start(place, member.names, limit)
        check()
        if time.monotonic() >= deadline:
            raise CallTimeoutError(f"the arrival of {member.names[0]!r} at {place}", timeout)
        time.sleep(PAUSE)
