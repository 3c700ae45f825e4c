"""Config of the transport ``ipc``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr

from pparallel.interfaces.transport import TransportConfig


class IpcTransportConfig(TransportConfig, frozen=True):
    """A transport between processes of one machine, or threads of one process.

    Attributes:
        backend: the name of the backend.
        directory: where members that are started by hand meet: a folder of one's own that nobody
            else may enter (mode 0700). A launched job makes one, and tells its members.
        key: what members that are started by hand prove to know: the same long random text for
            all. A launched job makes one, and tells its members.
        arena_budget: bytes of shared memory that a member may have on its way to others, for
            buffers of 16 KiB and more; ``None``: half of what this process may use.
        lanes: direct connections that a member may have to the same other one: as many threads may
            each wait for an answer without one more thread in between; further calls share a
            connection.
    """

    backend: Literal["ipc"] = "ipc"
    directory: Path | None = None
    key: SecretStr | None = Field(default=None, min_length=16)
    arena_budget: int | None = Field(default=None, ge=1)
    lanes: int = Field(default=64, ge=1)
