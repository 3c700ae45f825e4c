"""What a config says about the pool."""

from __future__ import annotations

from typing import Literal

from pparallel.interfaces.pool import PoolConfig
from pydantic import Field


class ExamplePoolConfig(PoolConfig, frozen=True):
    """A pool of threads.

    Attributes:
        backend: selects this backend.
        patience: seconds that join waits, once the pool is terminated, for tasks that still run.
    """

    backend: Literal["example"] = "example"
    patience: float = Field(default=1.0, ge=0)
