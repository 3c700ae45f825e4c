"""Room for the workers of one pool: Ray reserves it for all at once, as a placement group."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any

import ray
from ray.exceptions import GetTimeoutError
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from pparallel.errors import ClosedError, PparallelError
from pparallel_ray.pool.config import RayPoolConfig

_SLICE = 0.2  #: seconds after which somebody who waits sees whether he is to go on
_GROUP_SLICE = 1  #: the same where Ray counts whole seconds


class NoPlaceError(PparallelError):
    """Raised when Ray has found no room for a pool's workers in time."""


class Places:
    """The places of one pool's workers. Any thread may ask.

    Args:
        config: the pool's.
        name: what the pool is called.
    """

    def __init__(self, config: RayPoolConfig, name: str) -> None:
        self._config = config
        self._name = name
        self._lock = threading.Lock()
        self._group: PlacementGroup | None = None
        self._shares: dict[int, Any] = {}
        self._is_closed = False

    def open(self) -> None:
        """Have room reserved; does not wait for it."""
        bundles = [self._wanted()] * self._config.workers
        self._group = placement_group(bundles, strategy=self._config.strategy.upper())

    def node(self, number: int) -> str:
        """Return on which machine worker *number* has its place, once Ray has found that.

        Raises:
            NoPlaceError: Ray has found none in time.
            ClosedError: the pool is being closed.
        """
        assert self._group is not None
        deadline = monotonic() + self._config.start_timeout
        while not self._group.wait(_GROUP_SLICE):
            self.check(deadline)
        node: str = placement_group_table(self._group)["bundles_to_node_id"][number]
        return node

    def variables(self, number: int) -> dict[str, str]:
        """Return what tells worker *number* which GPUs are its own."""
        if not self._config.num_gpus:
            return {}
        share = self._share(number)
        answer = share.gpus.remote()
        deadline = monotonic() + self._config.start_timeout
        while True:
            try:
                gpus: list[str] = ray.get(answer, timeout=_SLICE)
            except GetTimeoutError:
                self.check(deadline)
            else:
                return {"CUDA_VISIBLE_DEVICES": ",".join(gpus)}

    def check(self, deadline: float | None = None) -> None:
        """Raise if the pool is being closed, or *deadline* has passed."""
        if self._is_closed:
            raise ClosedError(self._name, "is being closed")
        if deadline is not None and monotonic() > deadline:
            raise self._no_place()

    def deadline(self) -> Callable[[], None]:
        """Return what raises as :meth:`check` does, once a worker should have started."""
        deadline = monotonic() + self._config.start_timeout
        return lambda: self.check(deadline)

    def close(self) -> None:
        """Give the room back; those who wait for some give up. Safe to call again."""
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
        if self._group is not None and not was_closed:
            with suppress(Exception):  # the cluster may be gone, and the group with it
                remove_placement_group(self._group)

    def _share(self, number: int) -> Any:
        """Return an actor that has the GPUs of a place: Ray says which they are to actors only."""
        assert self._group is not None
        with self._lock:
            found = self._shares.get(number)
        strategy = PlacementGroupSchedulingStrategy(
            self._group, placement_group_bundle_index=number
        )
        if found is None:
            found = (
                ray.remote(Share)
                .options(num_cpus=0, num_gpus=self._config.num_gpus, scheduling_strategy=strategy)
                .remote()
            )
            with self._lock:
                self._shares[number] = found
        return found

    def _wanted(self) -> dict[str, float]:
        config = self._config
        wanted = {"CPU": config.num_cpus, "GPU": config.num_gpus, **config.resources}
        return {name: each for name, each in wanted.items() if each}

    def _no_place(self) -> NoPlaceError:
        free, there = ray.available_resources(), ray.cluster_resources()
        shown = ", ".join(
            f"{each:g} {name} ({free.get(name, 0):g} of {there.get(name, 0):g} are free)"
            for name, each in self._wanted().items()
        )
        config = self._config
        return NoPlaceError(
            f"Ray found no room for the {config.workers} workers of {self._name} within"
            f" {config.start_timeout:g} s; each wants {shown}, by strategy {config.strategy!r}:"
            " give the cluster more, or ask for less with size, num_cpus, num_gpus or resources,"
            " for another strategy, or wait longer with start_timeout"
        )


class Share:
    """Holds the GPUs of one worker's place."""

    def gpus(self) -> list[str]:
        """Return their numbers."""
        found: list[str] = ray.get_runtime_context().get_accelerator_ids()["GPU"]
        return found
