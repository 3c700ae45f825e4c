"""How a worker is started where Ray has found room. All of it waits, within bounds."""

from __future__ import annotations

import os
import pickle
import secrets
import sys

from ray.exceptions import RayError

from pparallel.errors import PparallelError
from pparallel.interfaces.serializer import Serializer
from pparallel.runtime.pools import forwarding, nesting
from pparallel.runtime.processes import main_module
from pparallel.runtime.streams import Streams
from pparallel_ray.pool.accounts.worker import Link, Worker
from pparallel_ray.pool.config import RayPoolConfig
from pparallel_ray.pool.staff.hosts import HOSTS, first_lines, why_ended
from pparallel_ray.pool.staff.places import Places
from pparallel_ray.pool.wire.admission import CONTROL, WORK, connect
from pparallel_ray.pool.wire.channel import Channel
from pparallel_ray.pool.wire.orders import SETTLE, Settings, Start


class Recruiter:
    """Starts the workers of one pool. Any thread may call it, one for each worker at a time.

    Args:
        config: the pool's.
        name: what the pool is called.
        serializer: the pool's.
        streams: the pool's random streams, of which each worker gets its own.
    """

    def __init__(
        self, config: RayPoolConfig, name: str, serializer: Serializer, streams: Streams
    ) -> None:
        self._config = config
        self._name = name
        self._serializer = serializer
        self._streams = streams
        self._address = ""
        self._places = Places(config, name)

    def open(self, address: str) -> None:
        """Know the cluster's address, and have room reserved."""
        self._address = address
        self._places.open()

    def hire(self, number: int) -> Link:
        """Return the connection to a supervisor where worker *number* has its place.

        Raises:
            NoPlaceError: there was no room in time.
            PparallelError: Ray could not start its host, or that cannot be reached.
            ClosedError: the pool is being closed.
        """
        places, name = self._places, secrets.token_bytes(16)
        try:
            node = places.node(number)
            settings = self._settings(number, places.variables(number))
            host = HOSTS.on(node, self._config.runtime_env, places.deadline())
            control = Channel(connect(host.address, host.key, CONTROL, name), patient=True)
            control.send((SETTLE, *settings))
        except (RayError, OSError) as error:
            places.check()
            message = f"Ray could not start {self._worker_name(number)}: {first_lines(error)}"
            raise PparallelError(message) from error
        return Link(number, name, host, control)

    def start(self, link: Link) -> Worker:
        """Start a process at *link*, and return it; it says itself when it is ready.

        Raises:
            OSError: the host cannot be reached.
            SerializationError: the initializer or its arguments cannot be sent.
        """
        start, host = self._start(link.number), link.host
        channel = Channel(connect(host.address, host.key, WORK, link.name), patient=False)
        channel.send(tuple(start))
        return Worker(link, start.name, channel)

    def why_lost(self, link: Link) -> str:
        """Return what Ray says of the end of a supervisor."""
        return why_ended(link.host)

    def close(self) -> None:
        """Start nothing more, and let those who wait for a place give up."""
        self._places.close()

    def _settings(self, number: int, variables: dict[str, str]) -> Settings:
        config = self._config
        return Settings(
            self._worker_name(number),
            (type(self._serializer).__module__, *config.preload),
            config.threads_per_worker or max(1, int(config.num_cpus)),
            config.task_timeout,
            None if config.max_rss is None else int(config.max_rss),
            {"RAY_ADDRESS": self._address, **variables},
        )

    def _start(self, number: int) -> Start:
        config = self._config
        prepared = (config.initializer, config.initargs, config.context(number))
        return Start(
            self._worker_name(number),
            pickle.dumps(self._serializer),
            [bytes(each) for each in self._serializer.dumps(prepared)],
            pickle.dumps(self._streams.sub("worker", number)),
            config.threads_per_worker or max(1, int(config.num_cpus)),
            forwarding.settings(),
            nesting.depth(),
            [os.path.abspath(each) for each in sys.path],
            os.getcwd(),
            [str(each) for each in getattr(sys, "argv", [])],
            main_module.describe(),
        )

    def _worker_name(self, number: int) -> str:
        return f"{self._name}-worker-{number}"
