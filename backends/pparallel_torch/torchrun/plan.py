"""What the agent's process is told, and what it reports at its end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run; the options are those of the launcher's config.

    Attributes:
        directory: where the ranks find the launching process.
        flags: those of this interpreter.
        nproc_per_node: how many ranks this machine runs.
    """

    directory: str
    flags: list[str]
    nproc_per_node: int
    nnodes: int
    max_restarts: int
    rdzv_backend: str
    rdzv_endpoint: str
    rdzv_id: str
    rdzv_timeout: float
    local_addr: str | None
    monitor_interval: float
    shutdown_timeout: int

    def dumps(self) -> bytes:
        """Return it as bytes."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def loads(cls, data: bytes) -> Plan:
        """Return what :meth:`dumps` made."""
        return cls(**json.loads(data))


@dataclass(frozen=True, slots=True)
class Report:
    """How the agent has ended.

    Attributes:
        ended: the ranks of this machine that have ended badly: pid and exit code.
        error: why the agent could not do its work: the exception's type, message and traceback.
    """

    ended: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    error: tuple[str, str, str] | None = None

    def dumps(self) -> bytes:
        """Return it as bytes."""
        ended = [[rank, *how] for rank, how in self.ended.items()]
        return json.dumps([ended, self.error]).encode()

    @classmethod
    def loads(cls, data: bytes) -> Report:
        """Return what :meth:`dumps` made."""
        ended, error = json.loads(data)
        return cls({rank: (pid, code) for rank, pid, code in ended}, error and tuple(error))
