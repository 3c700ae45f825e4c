"""What one member is told of its world, by the arguments of ``World`` and the environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pparallel.compat.machin.distributed.places import Place
from pparallel.errors import ConfigError, did_you_mean
from pparallel.runtime import environment

TRANSPORTS = ("zmq", "ipc", "torch_rpc")
COLLECTIVES = ("gloo", "nccl", "shm")

FOREVER = 1e8  #: seconds: what a time-out of 0 stands for
_THREADS = 16  #: functions that a member runs at once; as many as torch RPC by default

_VARIABLE = "PPARALLEL_MACHIN_TRANSPORT"


@dataclass(frozen=True, slots=True)
class Settings:
    """How a member takes part in its world.

    Attributes:
        name: its name.
        rank: its rank.
        local_rank: its number on its machine, where torchrun says it, else the rank.
        size: how many members there are.
        dist: where collectives meet; all worlds of a machine differ in this or in *rpc*.
        rpc: where calls meet.
        transport: what carries them.
        dist_timeout: seconds that the members wait for one another.
        rpc_timeout: seconds that a call may take.
        keys: the path of this member's key file.
        allow_insecure: whether to do without, on several machines.
    """

    name: str
    rank: int
    local_rank: int
    size: int
    dist: Place
    rpc: Place
    transport: str
    dist_timeout: float
    rpc_timeout: float
    keys: str | None
    allow_insecure: bool

    @classmethod
    def of(
        cls,
        name: str,
        rank: int,
        world_size: int,
        dist_init_method: str,
        rpc_init_method: str,
        dist_timeout: float,
        rpc_timeout: float,
    ) -> Settings:
        """Return what the arguments and the environment say.

        Raises:
            ConfigError: it cannot be; the message says what to write.
        """
        if not isinstance(name, str) or not name:
            raise ConfigError(f"a member's name is a text, not {name!r}", path="name")
        told = environment.machin_world()
        if told.transport not in TRANSPORTS:
            hint = did_you_mean(told.transport, TRANSPORTS)
            message = f"{told.transport!r} is none of {', '.join(TRANSPORTS)}.{hint}"
            raise ConfigError(message, source=_VARIABLE)
        for option, seconds in (("dist_timeout", dist_timeout), ("rpc_timeout", rpc_timeout)):
            if seconds < 0:
                message = f"{seconds!r}: give seconds, or 0 for no limit"
                raise ConfigError(message, path=option)
        settings = cls(
            name,
            *_numbers(rank, world_size),
            Place.parse(dist_init_method, "dist_init_method"),
            Place.parse(rpc_init_method, "rpc_init_method"),
            told.transport,
            dist_timeout or FOREVER,
            rpc_timeout or FOREVER,
            told.keys,
            told.allow_insecure,
        )
        settings._check_reach()
        return settings

    @property
    def is_near(self) -> bool:
        """Whether all members are on this machine, and can be handed keys by rank 0."""
        return self.dist.is_near and self.rpc.is_near

    @property
    def meeting_place(self) -> str:
        """The name, on this machine, of where the members meet."""
        return f"{self.dist.port}-{self.rpc.port}"

    def section(self, timeout: float) -> dict[str, Any]:
        """Return the config of the transport, which may take *timeout* seconds to open."""
        shared = {
            "backend": self.transport,
            "timeout": self.rpc_timeout,
            "rendezvous_timeout": timeout,
            "handler_threads": _THREADS,
        }
        if self.transport == "zmq":
            return {**shared, **self._zmq()}
        if self.transport == "torch_rpc":
            return {**shared, "allow_insecure": self.allow_insecure}
        return shared

    def _zmq(self) -> dict[str, Any]:
        if not self.is_near:
            found = {"keys": self.keys, "allow_insecure": self.allow_insecure}
            return found if self.rpc.taken else {**found, "address": str(self.rpc)}
        free = self.rpc._replace(port=0) if self.rpc.taken else self.rpc
        return {"address": str(free)}

    def _check_reach(self) -> None:
        """Refuse what does not work on several machines.

        Raises:
            ConfigError: members may be on several, and nothing protects them, or cannot.
        """
        if self.is_near:
            return
        place = self.rpc if self.dist.is_near else self.dist
        if self.dist.is_near != self.rpc.is_near:
            other = self.dist if place is self.rpc else self.rpc
            message = (
                f"{place} can be reached from other machines, and {other.option} ({other}) cannot: "
                "write the same host in both"
            )
            raise ConfigError(message, path=place.option)
        if self.transport == "ipc":
            message = (
                f"{place} is for several machines, and {_VARIABLE}=ipc for one: write "
                "tcp://localhost:PORT, or use zmq"
            )
            raise ConfigError(message, path=place.option)
        if self.allow_insecure or (self.keys and self.transport == "zmq"):
            return
        keys = (
            "write keys for all members with 'pparallel keys new' and set PPARALLEL_MACHIN_KEYS to "
            "the file of this one; or, "
            if self.transport == "zmq"
            else "use zmq, which takes keys; or, "
        )
        message = (
            f"{place} can be reached from other machines, and whoever reaches it could run code "
            f"in every member: {keys}where only trusted machines reach it, set "
            "PPARALLEL_MACHIN_ALLOW_INSECURE=1; for members on one machine write "
            "tcp://localhost:PORT"
        )
        raise ConfigError(message, path=place.option)


def check_backend(backend: str, option: str) -> str:
    """Return the name of a collective's backend.

    Raises:
        ConfigError: there is none of that name here.
    """
    name = str(backend).lower()
    if name not in COLLECTIVES:
        why = "torch's own packages come without MPI" if name == "mpi" else "there is none"
        message = (
            f"{backend!r}: {why}; write gloo (tensors of the CPU), nccl (of GPUs) or shm (of the "
            f"CPU, on one machine).{did_you_mean(name, COLLECTIVES)}"
        )
        raise ConfigError(message, path=option)
    return name


def _numbers(rank: int, size: int) -> tuple[int, int, int]:
    """Return rank, rank on its machine, and size, given or as torchrun left them."""
    found = environment.torchrun()
    if rank == -1 or size == -1:
        if found is None:
            message = (
                "nothing says which member this is: give World(name, rank=..., world_size=...), "
                "or start the program with torchrun, which sets RANK and WORLD_SIZE"
            )
            raise ConfigError(message, path="rank" if rank == -1 else "world_size")
        rank = found.rank if rank == -1 else rank
        size = found.world_size if size == -1 else size
    if size < 1 or not 0 <= rank < size:
        message = f"ranks go from 0 to world_size - 1: rank {rank} of {size} cannot be"
        raise ConfigError(message, path="rank")
    known = found is not None and (found.rank, found.world_size) == (rank, size)
    return rank, found.local_rank if found is not None and known else rank, size
