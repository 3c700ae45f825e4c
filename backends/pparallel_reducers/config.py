"""What the reducers of this package are told."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pparallel.interfaces.ordered_server import OrderedServerConfig
from pparallel.interfaces.reducer import ReducerConfig


class LocalReducerConfig(ReducerConfig, frozen=True):
    """Each member trains a model of its own.

    Attributes:
        backend: selects this backend.
    """

    backend: Literal["local"] = "local"


class GradServerReducerConfig(ReducerConfig, frozen=True):
    """Members push gradients to secondaries, and those to a primary, which steps the optimizer.

    Attributes:
        backend: selects this backend.
        primary: the member that manages the model; by default the first.
        secondaries: the members that take gradients from the others and sum them; by default the
            primary alone.
        reduce_batch_size: how many messages are summed before they are passed on. It counts at
            each level: a secondary sums so many gradients, the primary so many of those sums, and
            one step of the optimizer takes its square.
        reduce_method: what the optimizer steps on: the mean or the sum of the gradients.
        reduce_device: where the primary and the secondaries sum and step.
        max_queue_size: how many acknowledged messages may wait at each level; a sender beyond
            that waits. A longer queue lets members run further ahead of the optimizer, so that
            their gradients are of older parameters.
        dedicated: whether the primary feeds no batches; by default so if there are others.
        ordered_server: where the parameters are published; by default the runtime's.
    """

    backend: Literal["grad_server"] = "grad_server"
    primary: str | None = None
    secondaries: tuple[str, ...] | None = Field(default=None, min_length=1)
    reduce_batch_size: int = Field(default=1, ge=1)
    reduce_method: Literal["mean", "sum"] = "mean"
    reduce_device: str = "cpu"
    max_queue_size: int = Field(default=1, ge=1)
    dedicated: bool | None = None
    ordered_server: OrderedServerConfig | None = None
