"""Launcher whose ranks run where Ray has room for them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from typing_extensions import override

from pparallel.interfaces.launcher import LaunchContext, Launcher, RankSpec, StartMethod
from pparallel.interfaces.serializer import Serializer
from pparallel.runtime.member import Member
from pparallel_ray.cluster import Cluster
from pparallel_ray.launcher.config import RayLauncherConfig
from pparallel_ray.launcher.context import RayLaunchContext
from pparallel_ray.launcher.placing import Places
from pparallel_ray.launcher.starting import started


class RayLauncher(Launcher):
    """Runs each rank in a process of its own, on a machine of a Ray cluster that has room for it.

    What a rank runs and returns goes through the serializer, and what it prints and logs comes to
    this process. All ranks get what they ask for, or none starts; each runs once, for Ray is not
    told to start one again. They end with this process at the latest, whatever ``daemon`` says of
    waiting for them; how processes start is the launcher's own affair.
    """

    def __init__(
        self, config: RayLauncherConfig, *, member: Member, serializer: Serializer
    ) -> None:
        self.config = config
        self._serializer = serializer
        self._cluster = Cluster(config.cluster)

    @override
    def open(self) -> None:
        """Connect to the cluster, so that it stays for all launches."""
        self._cluster.open()

    @override
    def close(self) -> None:
        self._cluster.close()

    @override
    def start(
        self, ranks: Sequence[RankSpec], *, daemon: bool, start_method: StartMethod
    ) -> LaunchContext:
        with ExitStack() as lifetime:
            lifetime.enter_context(Cluster(self.config.cluster))
            places = Places(ranks, self.config)
            lifetime.callback(places.release)
            places.reserve()
            found = started(ranks, self.config, self._serializer, places)
            return RayLaunchContext(
                ranks, found, self._serializer, lifetime.pop_all(), daemon=daemon
            )
