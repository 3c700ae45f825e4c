"""How ranks get their places: all at once, or not at all."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from time import monotonic
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from pparallel.errors import ClosedError, ConfigError
from pparallel.interfaces.launcher import RankSpec
from pparallel.runtime import stopping
from pparallel_ray.launcher.config import RayLauncherConfig
from pparallel_ray.launcher.needs import Needs, needs_of, obstacle, total, words

logger = logging.getLogger(__name__)

_LOOK = 0.5  #: seconds between looks at whether a wait is to go on
_SAY = 5.0  #: seconds between two words on what is waited for


class Places:
    """The places of the ranks of one launch: a placement group, unless none needs anything.

    Args:
        ranks: what is to be placed.
        config: of the launcher.

    Raises:
        ConfigError: a rank asks for what is no amount.
    """

    def __init__(self, ranks: Sequence[RankSpec], config: RayLauncherConfig) -> None:
        self._ranks, self._config = ranks, config
        self._needs: list[Needs] = [needs_of(each, config.num_cpus) for each in ranks]
        self._group: PlacementGroup | None = None

    def reserve(self) -> None:
        """Wait until all have a place.

        Raises:
            ConfigError: the cluster is too small, or did not have the room in time.
            ClosedError: the rank that launches, if it is one, was told to stop.
        """
        bundles = [each for each in self._needs if each]
        if not bundles:
            return
        problem = self._obstacle()
        if problem and not self._config.growth_timeout:
            raise _too_small(problem)
        strategy = self._config.placement.upper()
        self._group = placement_group(bundles, strategy=strategy)
        if problem:
            logger.info("waiting for the Ray cluster to grow: %s", problem)
            self._wait(self._config.growth_timeout)
            if problem := self._obstacle():
                raise _too_small(problem)
        if not self._wait(self._config.start_timeout):
            raise self._too_busy()

    def options(self, rank: int) -> dict[str, Any]:
        """Return the options of the actor of the rank of that number in the launch."""
        needs = dict(self._needs[rank])
        options: dict[str, Any] = {
            "num_cpus": needs.pop("CPU", 0),
            "num_gpus": needs.pop("GPU", 0),
            "memory": int(needs.pop("memory", 0)) or None,
            "resources": needs,
        }
        if self._group is not None and self._needs[rank]:
            bundle = sum(map(bool, self._needs[:rank]))
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(self._group, bundle)
        return options

    def release(self) -> None:
        """Give the places back, which ends what still runs there; safe to call again."""
        group, self._group = self._group, None
        if group is not None and ray.is_initialized():
            remove_placement_group(group)

    def _obstacle(self) -> str:
        machines = [each["Resources"] for each in ray.nodes() if each["Alive"]]
        return obstacle(self._ranks, self._needs, machines, self._config.placement)

    def _wait(self, timeout: float) -> bool:
        """Wait until the group has its place, at most *timeout* seconds."""
        assert self._group is not None
        outer = stopping.current()
        deadline, said = monotonic() + timeout, monotonic() - _SAY / 2
        while not self._group.wait(min(_LOOK, max(0.0, deadline - monotonic()))):
            if monotonic() >= deadline:
                return False
            if outer is not None and outer.is_set():
                raise ClosedError("the launch", "was told to stop", consequence=True)
            if monotonic() - said >= _SAY:
                said = monotonic()
                logger.info("waiting for %s; free now: %s", *self._asked_and_free())
        return True

    def _asked_and_free(self) -> tuple[str, str]:
        return words(total(self._needs)), words(ray.available_resources())

    def _too_busy(self) -> ConfigError:
        asked, free = self._asked_and_free()
        seconds = self._config.start_timeout
        message = (
            f"the {len(self._ranks)} members ask for {asked}, placed by "
            f"{self._config.placement!r}, and had no room within {seconds:g} s: the Ray cluster "
            f"has {words(ray.cluster_resources())}, of which are free {free}; ask for less in "
            "members' resources, end what uses it, or raise start_timeout"
        )
        return ConfigError(message, path="launcher.start_timeout")


def _too_small(problem: str) -> ConfigError:
    has = words(ray.cluster_resources())
    message = (
        f"the Ray cluster is too small: {problem}; it has {has}. Ask for less in members' "
        "resources (those that say nothing get the launcher's num_cpus), add machines, or give "
        "growth_timeout the seconds that they take to come"
    )
    return ConfigError(message, path="members")
