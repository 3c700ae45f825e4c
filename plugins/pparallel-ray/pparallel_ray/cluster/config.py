"""Which Ray cluster to use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from pparallel.config import Config

_OF_OUR_OWN = ("num_cpus", "num_gpus", "resources", "object_store_memory")


class RayConnection(Config, frozen=True):
    """Which Ray cluster to use: one that runs, or one of this program's own.

    A process is connected to one cluster at a time. Where it is connected already, by the program
    itself, by another component, or because Ray started it, that cluster is used.

    Attributes:
        address: of a running cluster, as ``ray.init`` takes it (``auto``, ``host:port``); ``None``:
            the one that this process is connected to, else the one that ``RAY_ADDRESS`` names,
            else a new one on this machine, which ends with the last component that uses it.
        num_cpus: how many CPUs a cluster of our own has; by default those of the machine.
        num_gpus: how many GPUs it has; by default those of the machine.
        resources: what else it has, by name, for members that ask for it.
        object_store_memory: bytes of shared memory for its object store; by default Ray's choice.
        namespace: where named actors of this process are found; by default each connection has
            its own.
        runtime_env: what Ray prepares for the processes that it starts for this program
            (``working_dir``, ``pip``, ``env_vars``, ...), as ``ray.init`` takes it.
    """

    address: str | None = None
    num_cpus: int | None = Field(default=None, ge=0)
    num_gpus: int | None = Field(default=None, ge=0)
    resources: Mapping[str, float] = {}
    object_store_memory: int | None = Field(default=None, ge=75 << 20)
    namespace: str | None = None
    runtime_env: Mapping[str, Any] = {}

    @field_validator("address")
    @classmethod
    def _refuse_ray_client(cls, address: str | None) -> str | None:
        if address is not None and "://" in address:
            message = (
                "Ray Client ({address}) is not supported: run the program on a machine of the "
                "cluster, where the address is 'auto', or submit it with 'ray job submit'"
            )
            raise PydanticCustomError("ray_client", message, {"address": address})
        return address

    @model_validator(mode="after")
    def _refuse_what_a_running_cluster_decides(self) -> Self:
        given = [name for name in _OF_OUR_OWN if name in self.model_fields_set]
        if self.address not in (None, "local") and given:
            message = (
                "{name} is for a cluster that this program starts, and 'address' names one that "
                "runs already: leave one of the two out"
            )
            raise PydanticCustomError("ray_options", message, {"name": repr(given[0])})
        return self
