"""What members leave for one another before they are connected: bytes, in a store of torch's."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

from pparallel.errors import CallTimeoutError, ConfigError
from pparallel.runtime import environment

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

PAUSE = 0.01  #: seconds between two looks for what is not there yet

_opened = itertools.count()  #: exchanges of this process that meet where others have met before


class Exchange:
    """Bytes under keys, which the members of one start of a job put and find. It imports torch.

    A process whose agent starts it again finds nothing of its former life, and neither does a job
    that is the next one in the same processes: all members open theirs in the same order.

    Attributes:
        store: where it all is, with a prefix of its own: for what of torch's needs a store.
    """

    def __init__(self, address: str, rank: int, size: int, timeout: float) -> None:
        """Connect.

        Args:
            address: ``torchrun://HOST:PORT/JOB/RESTART``, the store that torchrun keeps;
                ``file:///PATH``, a file of this machine that is not there before;
                ``tcp://HOST:PORT``, where the member of rank 0 will listen.
            rank: of this member.
            size: how many members there are.
            timeout: seconds that connecting may take.

        Raises:
            ConfigError: there is no such kind of address.
            CallTimeoutError: nobody listened there in time.
        """
        parts = urlsplit(address)
        here = parts.scheme == "file" and parts.path
        if not here and not (parts.scheme in ("tcp", "torchrun") and parts.hostname and parts.port):
            message = (
                f"members cannot meet at {address!r}: "
                "write torchrun://HOST:PORT/JOB/RESTART, file:///PATH or tcp://HOST:PORT"
            )
            raise ConfigError(message, path="transport")
        import torch.distributed

        if not torch.distributed.is_available():
            raise ConfigError("this torch was built without torch.distributed", path="transport")
        if parts.scheme == "file":
            store, prefix = _file(parts.path, size), "pparallel"
        else:
            store = _server(parts, rank, size, timeout)
            prefix = f"pparallel{parts.path}/{next(_opened)}"
        self.store: Store = torch.distributed.PrefixStore(prefix, store)  # type: ignore[attr-defined]

    def put(self, key: str, value: bytes) -> None:
        """Leave *value* under *key*, for good."""
        self.store.set(key, value)  # type: ignore[arg-type]  # it takes bytes too

    def get(self, key: str) -> bytes | None:
        """Return what was left under *key*; ``None`` if that has not happened yet."""
        return self.store.get(key) if self.store.check([key]) else None

    def arrivals(
        self, keys: Iterable[str], timeout: float, stopped: Callable[[], bool]
    ) -> Iterator[tuple[str, bytes]]:
        """Yield each of *keys* with its value once that is there.

        It ends when all have come, when *timeout* seconds have passed, or when *stopped*, which
        is asked now and then, returns true.
        """
        missing = list(keys)
        deadline = time.monotonic() + timeout
        while missing and not stopped():
            for key in list(missing):
                if (value := self.get(key)) is not None:
                    missing.remove(key)
                    yield key, value
            if missing and time.monotonic() >= deadline:
                return
            time.sleep(PAUSE if missing else 0)


def _file(path: str, size: int) -> Store:
    import torch.distributed as dist

    found = environment.torchrun()
    store: Store = dist.FileStore(f"{path}.{found.restart if found else 0}", size)  # type: ignore[attr-defined]
    return store


def _server(parts: SplitResult, rank: int, size: int, timeout: float) -> Store:
    import torch.distributed as dist

    found = environment.torchrun()
    kept = parts.scheme == "torchrun" and found is not None and found.keeps_store
    try:
        store: Store = dist.TCPStore(  # type: ignore[attr-defined]
            parts.hostname or "",
            parts.port or 0,
            size,
            is_master=rank == 0 and not kept,
            timeout=timedelta(seconds=timeout),
            wait_for_workers=False,
            multi_tenant=True,  # torch.distributed itself may be told to use the same port
        )
    except dist.DistError as error:
        where = f"the arrival of the first member at {parts.netloc}"
        raise CallTimeoutError(where, timeout) from error
    return store
