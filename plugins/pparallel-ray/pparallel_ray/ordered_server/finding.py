"""How the members of a job, or programs that know its name, find a keeper."""

from __future__ import annotations

import hashlib
import secrets
import sys
from time import monotonic, sleep
from typing import Any, NamedTuple

import ray

from pparallel.errors import CallTimeoutError, ClosedError, ConfigError
from pparallel.runtime import stopping
from pparallel.runtime.member import Member
from pparallel_ray.cluster.connecting import address
from pparallel_ray.ordered_server.config import RayOrderedServerConfig
from pparallel_ray.ordered_server.keeper import About, Keeper

_PAUSE = 0.02  #: seconds between two looks for a keeper that is not there yet
_MANY = 1_000_000  #: calls at once: each that waits is one


class Found(NamedTuple):
    """A keeper.

    Attributes:
        actor: itself.
        is_ours: whether it ends with this member's server.
    """

    actor: Any
    is_ours: bool


def found(config: RayOrderedServerConfig, member: Member, component: str) -> Found:
    """Return the keeper; the first member of a job starts it.

    Raises:
        ConfigError: there is one of that name that holds another number of versions.
        CallTimeoutError: the first member has not started it in time.
        ClosedError: the job ends.
    """
    name = config.name
    if name is None and member.world_size > 1:
        # The place where they meet is a secret of the job on some transports.
        place = f"{member.rendezvous}/{component}".encode()
        name = f"ordered-server-{hashlib.sha256(place).hexdigest()[:32]}"
    if member.rank == 0:
        return _started(config, name)
    assert name is not None, "only a member alone has no need of a name"
    return _awaited(config, name)


def _started(config: RayOrderedServerConfig, name: str | None) -> Found:
    maker = secrets.token_hex(8)
    options: dict[str, Any] = {
        "num_cpus": 0,
        "max_restarts": 0,  # a new one would be empty
        "max_task_retries": 0,
        "max_concurrency": _MANY,
    }
    if name is not None:
        options |= {"name": name, "namespace": config.namespace, "get_if_exists": True}
    if config.detached:
        options["lifetime"] = "detached"
    about = About(config.version_depth, maker)
    made: Any = ray.remote(Keeper)
    actor = made.options(**options).remote(tuple(about), sys.path)
    existing = About(*ray.get(actor.about.remote()))
    _check(config, existing)
    return Found(actor, existing.maker == maker and not config.detached)


def _awaited(config: RayOrderedServerConfig, name: str) -> Found:
    deadline = monotonic() + config.open_timeout
    stop = stopping.current()
    while (actor := _existing(name, config.namespace)) is None:
        if stop is not None and stop.is_set():
            raise ClosedError("the job", "ends", consequence=True)
        if monotonic() >= deadline:
            what = f"the first member's ordered server, looked for in the cluster {address()},"
            error = CallTimeoutError(what, config.open_timeout)
            error.add_note("give all members the same cluster.address if theirs are not")
            raise error
        sleep(_PAUSE)
    _check(config, About(*ray.get(actor.about.remote())))
    return Found(actor, is_ours=False)


def _existing(name: str, namespace: str) -> Any:
    try:
        return ray.get_actor(name, namespace)
    except ValueError:
        return None


def _check(config: RayOrderedServerConfig, existing: About) -> None:
    if existing.depth != config.version_depth:
        message = (
            f"server {config.name!r} holds {existing.depth} versions of a key, not "
            f"{config.version_depth}: give version_depth: {existing.depth}, or another name"
        )
        raise ConfigError(message, path="ordered_server.version_depth")
