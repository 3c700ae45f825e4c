"""This program's hosts: one actor on each machine, for all its pools, until it leaves the cluster.

A host reserves nothing: the room for its workers is reserved by the placement group of their pool.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import GetTimeoutError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pparallel_ray.pool.accounts.worker import HiredHost
from pparallel_ray.pool.supervisor.host import Host

_SLICE = 0.2  #: seconds after which somebody who waits sees whether he is to go on


class Hosts:
    """The hosts of this process, by job, machine and what Ray prepares for them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str, str], HiredHost] = {}
        self._coming: dict[tuple[str, str, str], threading.Lock] = {}

    def on(
        self, node: str, runtime_env: Mapping[str, Any], check: Callable[[], object]
    ) -> HiredHost:
        """Return the host on machine *node*, which is started if need be.

        Args:
            node: Ray's name of the machine.
            runtime_env: what Ray is to prepare for it.
            check: called now and then; raises when nobody waits any longer.

        Raises:
            RayError: it could not be started.
        """
        job: str = ray.get_runtime_context().get_job_id()
        place = job, node, json.dumps(dict(runtime_env), sort_keys=True, default=repr)
        with self._lock:
            coming = self._coming.setdefault(place, threading.Lock())
        with coming:
            found = self._known.get(place)
            if found is None or _has_ended(found):
                self._forget_others(job)
                found = self._known[place] = _hired(node, runtime_env, check)
            return found

    def _forget_others(self, job: str) -> None:
        """Forget those of clusters that this process is not connected to any more."""
        with self._lock:
            for place in [each for each in self._known if each[0] != job]:
                del self._known[place]


def why_ended(host: HiredHost) -> str:
    """Return what Ray says of the end of a host."""
    try:
        done, _ = ray.wait([host.running], timeout=_SLICE)
        if done:
            ray.get(done[0])
    except Exception as error:  # noqa: BLE001 - whatever Ray says of it
        return f"its actor is gone: {first_lines(error)}"
    return "its actor is gone, and Ray does not say why"


def first_lines(error: BaseException) -> str:
    """Return what *error* says, in one line."""
    lines = [each.strip() for each in str(error).splitlines() if each.strip()]
    return " ".join(lines[:6]) or type(error).__name__


def _has_ended(host: HiredHost) -> bool:
    done, _ = ray.wait([host.running], timeout=0)
    return bool(done)


def _hired(node: str, runtime_env: Mapping[str, Any], check: Callable[[], object]) -> HiredHost:
    options: dict[str, Any] = {
        "num_cpus": 0,
        "max_restarts": 0,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False),
    }
    if runtime_env:
        options["runtime_env"] = dict(runtime_env)
    key = secrets.token_bytes(32)
    actor: Any = ray.remote(Host).options(**options).remote(key)
    answer = actor.where.remote()
    try:
        while True:
            try:
                address = ray.get(answer, timeout=_SLICE)
                break
            except GetTimeoutError:
                check()
    except BaseException:
        with suppress(Exception):  # it is gone, or the cluster is
            ray.kill(actor)
        raise
    return HiredHost(address, key, actor.run.remote(), actor)


HOSTS = Hosts()
