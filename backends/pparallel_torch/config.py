"""Configs of the backends that stand on torch.distributed."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from pparallel.interfaces.collective import CollectiveConfig
from pparallel.interfaces.launcher import LauncherConfig
from pparallel.interfaces.serializer import SerializerConfig
from pparallel.interfaces.transport import TransportConfig
from pparallel_torch.collective import gpus


class TorchRpcTransportConfig(TransportConfig, frozen=True):
    """A transport on torch.distributed.rpc, one per process.

    Attributes:
        backend: the name of the backend.
        allow_insecure: let members be on several machines, although torch RPC neither encrypts nor
            asks who is there: whoever reaches its ports can run code in every member.
        num_worker_threads: how many threads of torch's receive messages.
    """

    backend: Literal["torch_rpc"] = "torch_rpc"
    allow_insecure: bool = False
    num_worker_threads: int = Field(default=16, ge=2)


class TorchrunLauncherConfig(LauncherConfig, frozen=True):
    """A launcher whose ranks are kept by torch's elastic agent, which starts them again.

    On several machines the same program is started on each, with the same ``rdzv_endpoint`` and
    ``rdzv_id``; each runs, and returns the results of, the ranks that fall to it.

    Attributes:
        backend: the name of the backend.
        nnodes: how many machines the job runs on.
        max_restarts: how often all ranks are started again when one has failed.
        rdzv_backend: how the agents of several machines meet: ``c10d``, or one that is installed.
        rdzv_endpoint: where they meet, as ``host:port``; on one machine a port that is free.
        rdzv_id: the name of the job there; on one machine it is made up.
        rdzv_timeout: seconds that an agent waits for the others.
        local_addr: the address of this machine for the others; by default that of its name.
        monitor_interval: seconds between two looks of the agent at its ranks.
        shutdown_timeout: seconds that ranks have to end when they are told to, before they are
            ended by force.
        threads_per_rank: threads that OpenMP, BLAS and torch may use in each rank; ``None``: its
            share of the cores, or what ``OMP_NUM_THREADS`` says.
        serializer: what turns the function, its arguments and its result into bytes; by default
            the runtime's.
    """

    backend: Literal["torchrun"] = "torchrun"
    nnodes: int = Field(default=1, ge=1)
    max_restarts: int = Field(default=0, ge=0)
    rdzv_backend: str = "c10d"
    rdzv_endpoint: str = ""
    rdzv_id: str = ""
    rdzv_timeout: float = Field(default=120.0, gt=0)
    local_addr: str | None = None
    monitor_interval: float = Field(default=0.1, gt=0)
    shutdown_timeout: int = Field(default=2, ge=1)
    threads_per_rank: int | None = Field(default=None, ge=1)
    serializer: SerializerConfig | None = None


class GlooCollectiveConfig(CollectiveConfig, frozen=True):
    """A collective on torch's gloo, for tensors of the CPU.

    Attributes:
        backend: the name of the backend.
        allow_insecure: let members be on several machines, although gloo neither encrypts nor asks
            who is there: whoever reaches its ports can read and change what members compute.
        address: the address or name by which the other members reach this one; by default the
            loopback address on one machine, else that of the interface towards the first member.
        interface_name: the network interface to use instead, such as ``eth0``.
        serializer: what turns objects into bytes for the object forms; by default the runtime's.
    """

    backend: Literal["gloo"] = "gloo"
    allow_insecure: bool = False
    address: str | None = None
    interface_name: str | None = None
    serializer: SerializerConfig | None = None


class NcclCollectiveConfig(CollectiveConfig, frozen=True):
    """A collective on NVIDIA's NCCL, for tensors on GPUs; refused where there are none.

    Attributes:
        backend: the name of the backend.
        allow_insecure: let members be on several machines, although NCCL neither encrypts nor asks
            who is there: whoever reaches its ports can read and change what members compute.
        serializer: what turns objects into bytes for the object forms; by default the runtime's.
    """

    backend: Literal["nccl"] = Field(default="nccl", validate_default=True)
    allow_insecure: bool = False
    serializer: SerializerConfig | None = None

    @field_validator("backend")
    @classmethod
    def _refuse_without_gpus(cls, value: str) -> str:
        if not gpus.has_gpus():
            message = "this machine has no GPU; write gloo, shm or local"
            raise PydanticCustomError("no_gpu", message)
        return value
