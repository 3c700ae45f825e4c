"""Values in this process."""

from __future__ import annotations

import threading
from weakref import WeakValueDictionary

from typing_extensions import override

from pparallel.interfaces.serializer import Serializer
from pparallel.runtime.client_server import ClientOrderedServer
from pparallel.runtime.member import Member
from pparallel.runtime.versioned_store import VersionedStore
from pparallel_servers.clients import StoreClient
from pparallel_servers.config import MemoryOrderedServerConfig

# Members that are threads of one job have only its meeting place in common, so that is where
# their store is found; it lives as long as one of them has it open.
_shared: WeakValueDictionary[tuple[str, str], VersionedStore] = WeakValueDictionary()
_sharing = threading.Lock()


class MemoryOrderedServer(ClientOrderedServer):
    """Keeps snapshots in this process; members of a job that are its threads share them."""

    def __init__(
        self,
        config: MemoryOrderedServerConfig,
        *,
        member: Member,
        serializer: Serializer,
        name: str,
    ) -> None:
        self._config = config
        self._member = member
        self._serializer = serializer
        self._name = name

    @override
    def open(self) -> None:
        self._client = StoreClient(self._store(), self._serializer)

    def _store(self) -> VersionedStore:
        depth = self._config.version_depth
        if self._member.rendezvous is None:
            return VersionedStore(depth)
        with _sharing:
            place = (self._member.rendezvous, self._name)
            return _shared.setdefault(place, VersionedStore(depth))
