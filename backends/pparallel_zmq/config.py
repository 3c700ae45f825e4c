"""Config of the ZeroMQ transport."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, SecretStr, field_validator

from pparallel.errors import ConfigError
from pparallel.interfaces.transport import TransportConfig


class ZmqTransportConfig(TransportConfig, frozen=True):
    """A transport between processes and machines on ZeroMQ.

    Attributes:
        backend: the name of the backend.
        address: where the first member is met: ``tcp://10.0.0.1:5555``, with port 0 for one that
            the launching process chooses, ``ipc:///a/private/directory/name`` among processes of
            one machine, or ``ipc`` for a directory of the job's own. ``None``: what the member was
            started with: ``ipc`` where our launcher starts it, a port of the first member that its
            store knows where torchrun does.
        host: the address of this machine at which it is met, if it is not the first member; by
            default the one from which it reaches the first.
        keys: for members that are started by hand, a file that ``pparallel keys new`` wrote for
            this member, or what stands in one. Launched members are given their own; those that
            torchrun starts make theirs.
        allow_insecure: whether to open without keys: then nothing is encrypted, and whoever
            reaches an address can have the members run what he likes.
        piece_size: bytes; frames that are larger travel in pieces of this size.
        window: how many pieces of one message may be under way at a time.
        high_water_mark: how many messages to one member wait in ZeroMQ's queue. More wait in the
            sender's memory, which ``max_in_flight`` limits.
        max_frames: how many frames a message may have.
        max_message: bytes that the frames of a message may hold together.
        handshake_timeout: seconds that a peer may take to prove who it is.
    """

    backend: Literal["zmq"] = "zmq"
    address: str | None = None
    host: str | None = None
    keys: str | Mapping[str, SecretStr] | None = None
    allow_insecure: bool = False
    piece_size: int = Field(default=2 * 2**20, ge=2**16, le=16 * 2**20)
    window: int = Field(default=4, ge=1, le=64)
    high_water_mark: int = Field(default=1000, ge=1)
    max_frames: int = Field(default=2**17, ge=16, le=2**20)
    max_message: int = Field(default=8 * 2**30, ge=2**16)
    handshake_timeout: float = Field(default=10.0, gt=0)

    @field_validator("keys", mode="before")
    @classmethod
    def _hide(cls, value: Any) -> Any:
        """Refuse what are no keys without showing it: it may be one."""
        if value is None or isinstance(value, str):
            return value
        if isinstance(value, Mapping) and all(
            isinstance(name, str) and isinstance(each, str | SecretStr)
            for name, each in value.items()
        ):
            return value
        message = "give the path of a file that 'pparallel keys new' wrote, or what stands in it"
        raise ConfigError(message, path="transport.keys")
