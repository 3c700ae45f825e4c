"""Values in a Redis server."""

from __future__ import annotations

import logging
from contextlib import ExitStack

from typing_extensions import override

from pparallel.interfaces.serializer import Serializer
from pparallel.runtime.client_server import ClientOrderedServer, check_trust, kind_of
from pparallel.runtime.member import Member
from pparallel_redis import checks, forks
from pparallel_redis.client import Client
from pparallel_redis.config import RedisOrderedServerConfig
from pparallel_redis.dialing import dialer

logger = logging.getLogger(__name__)


class RedisOrderedServer(ClientOrderedServer):
    """Keeps values in a Redis server, for processes of any machines.

    Each push is one script. It is sent again where the connection was lost meanwhile, and takes
    effect once. What nobody can know any more is said to be unknown, by ``PeerLostError``.
    """

    def __init__(
        self,
        config: RedisOrderedServerConfig,
        *,
        member: Member,
        serializer: Serializer,
        name: str,
    ) -> None:
        self._config = config
        self._serializer = serializer
        self._path = name if name == config.interface else f"extra.{name}"
        self._kind = kind_of(serializer)
        check_trust(
            serializer,
            trusted=config.trusted,
            source="Redis",
            writable="the server",
            path=self._path,
        )

    @override
    def open(self) -> None:
        client = Client(dialer(self._config), self._serializer, self._config)
        with ExitStack() as undo:
            undo.callback(client.close)
            checks.check(client.lanes, self._config, self._kind, self._path)
            forks.keep(client)
            undo.pop_all()
        self._client = client
        logger.info(
            "Values are at %s, as {%s}:*", client.lanes.dialer.place, self._config.namespace
        )
