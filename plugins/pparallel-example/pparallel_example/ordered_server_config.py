"""What a config says about the ordered server."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pparallel.interfaces.ordered_server import OrderedServerConfig
from pparallel.interfaces.serializer import SerializerConfig
from pydantic import Field


class ExampleOrderedServerConfig(OrderedServerConfig, frozen=True):
    """Values in the files of a folder, for processes of one machine, now and later.

    Attributes:
        backend: selects this backend.
        path: the folder, on a local disk; made if there is none.
        serializer: what turns values into bytes. ``safe`` reads nothing but data; with one that
            can run code, whoever may write to the folder runs code in whoever reads it.
        timeout: seconds to wait while others keep the folder locked.
        poll: seconds between two looks for what is new, while somebody waits.
    """

    backend: Literal["example"] = "example"
    path: Path
    serializer: SerializerConfig = Field(default={"backend": "safe"}, validate_default=True)
    timeout: float = Field(default=30.0, gt=0)
    poll: float = Field(default=0.01, gt=0)
