"""What the pool and a worker's supervisor say to one another, and what a worker is told first."""

from __future__ import annotations

from typing import NamedTuple

from pparallel.runtime.processes import main_module

ENDED, GROWN, PLACE = range(3)  #: first field of what a supervisor says
SETTLE, KILL, MEASURE, RECALL = range(4)  #: first field of what the pool says to it


class Settings(NamedTuple):
    """What a supervisor is told first.

    Attributes:
        name: what its worker is called.
        preload: modules that the worker's process has from its start.
        threads: how many threads its libraries may use; ``None``: as Ray has it.
        task_timeout: seconds that a task may take.
        max_rss: bytes after which a worker is to be replaced.
        variables: what the worker finds in its environment.
    """

    name: str
    preload: tuple[str, ...]
    threads: int | None
    task_timeout: float | None
    max_rss: int | None
    variables: dict[str, str]


class Start(NamedTuple):
    """What a worker is told as it starts.

    Attributes:
        name: what it is called.
        serializer: the pool's, pickled.
        preparation: what to do before the first task, serialised.
        streams: its random streams, pickled.
        threads: how many threads its libraries may use.
        forwarding: which logs and warnings the pool wants.
        depth: how deep in the tasks of other pools it is.
        path: where the pool's process imports from.
        folder: the pool's working directory.
        argv: its ``sys.argv``.
        main: its ``__main__``, described.
    """

    name: str
    serializer: bytes
    preparation: list[bytes]
    streams: bytes
    threads: int | None
    forwarding: bytes
    depth: int
    path: list[str]
    folder: str
    argv: list[str]
    main: main_module.Description
