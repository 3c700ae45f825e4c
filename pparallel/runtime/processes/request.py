"""What a child is told: whom to call, and what of its parent it takes over."""

from __future__ import annotations

import marshal
import os
import sys
from collections.abc import Mapping
from typing import NamedTuple

from pparallel.runtime.processes import environment as surroundings
from pparallel.runtime.processes import main_module


class Request(NamedTuple):
    """A child to start.

    Attributes:
        target: ``module:function`` to call.
        payload: its first argument.
        name: of the process; the system shows its first 15 bytes.
        path: ``sys.path``.
        argv: ``sys.argv``.
        environment: ``os.environ``, as the system has it.
        affinity: the CPUs it may run on.
        main: what its ``__main__`` is; see :mod:`pparallel.runtime.processes.main_module`.
    """

    target: str
    payload: bytes
    name: str
    path: list[str]
    argv: list[str]
    environment: dict[bytes, bytes]
    affinity: list[int]
    main: main_module.Description

    @classmethod
    def of_this_process(
        cls, target: str, payload: bytes, name: str, environment: Mapping[str, str] | None
    ) -> Request:
        """Return a request for a child that is as this process is now."""
        return cls(
            target,
            bytes(payload),
            name,
            [str(each) for each in sys.path if isinstance(each, str)],
            [str(each) for each in getattr(sys, "argv", [])],
            surroundings.encoded(environment),
            list(os.sched_getaffinity(0)),
            main_module.describe(),
        )

    def dumps(self) -> bytes:
        """Return the request as bytes for the same interpreter."""
        return marshal.dumps(tuple(self))

    @classmethod
    def loads(cls, data: bytes) -> Request:
        """Return what was dumped."""
        return cls(*marshal.loads(data))
