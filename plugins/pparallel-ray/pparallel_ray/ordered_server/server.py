"""Ordered server whose values an actor of a Ray cluster keeps."""

from __future__ import annotations

from typing_extensions import override

from pparallel.interfaces.serializer import Serializer
from pparallel.runtime.client_server import ClientOrderedServer
from pparallel.runtime.member import Member
from pparallel_ray.cluster import Cluster
from pparallel_ray.ordered_server.client import KeeperClient
from pparallel_ray.ordered_server.config import RayOrderedServerConfig
from pparallel_ray.ordered_server.finding import found


class RayOrderedServer(ClientOrderedServer):
    """Keeps the values in an actor, which is asked by all members and never reads them.

    The actor has no second life, for that would be an empty one: once it has ended, everything
    raises ``PeerLostError``.
    """

    def __init__(
        self,
        config: RayOrderedServerConfig,
        *,
        member: Member,
        serializer: Serializer,
        name: str,
    ) -> None:
        self._config, self._member, self._serializer = config, member, serializer
        self._name = name
        self._cluster = Cluster(config.cluster)

    @property
    @override
    def hosting(self) -> bool:
        return self._member.rank == 0

    @override
    def open(self) -> None:
        self._cluster.open()
        try:
            actor, is_ours = found(self._config, self._member, self._name)
        except BaseException:
            self._cluster.close()
            raise
        what = self._config.name or self._name
        self._client = KeeperClient(actor, what, self._serializer, is_ours=is_ours)

    @override
    def close(self) -> None:
        super().close()
        self._cluster.close()
