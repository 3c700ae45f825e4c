"""Children for the tests of processes: each runs a piece of code; see ``process_target.py``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pparallel.runtime.processes import Exit, Process, start
from pparallel.runtime.processes.process import readable
from pparallel.testing.patience import PATIENCE

METHODS = ("forkserver", "spawn", "fork")
_WARNS = "ignore:This process .* is multi-threaded:DeprecationWarning"  # since Python 3.12
_FORK = pytest.param("fork", marks=pytest.mark.filterwarnings(_WARNS))
each_method = pytest.mark.parametrize("method", [*METHODS[:2], _FORK])
HERE = str(Path(__file__).parent)
TARGET = "process_target:run"


@contextmanager
def child(code: str, fds: Sequence[int] = (), **options: Any) -> Iterator[tuple[Process, int]]:
    """Start a child; yield it and the pipe on which it says something. It is gone at the end."""
    reader, writer = os.pipe()
    try:
        try:
            process = start(TARGET, code.encode(), [*fds, writer], **options)
        finally:
            os.close(writer)
        try:
            yield process, reader
        finally:
            process.signal(9)
            assert process.ended(PATIENCE) is not None
            process.close()
    finally:
        os.close(reader)


def line(reader: int) -> str:
    """Return the next thing that a child says; empty: it has ended."""
    said = bytearray()
    while not said.endswith(b"\n"):
        assert readable(reader, PATIENCE), f"the child says nothing more than {bytes(said)!r}"
        if not (byte := os.read(reader, 1)):
            break
        said += byte
    return said.decode().strip()


def outcome(code: str, fds: Sequence[int] = (), **options: Any) -> tuple[list[str], Exit]:
    """Run a child to its end; return the lines that it said, and how it ended."""
    with child(code, fds, **options) as (process, reader):
        said = list(iter(lambda: line(reader), ""))
        exit_ = process.ended(PATIENCE)
    assert exit_ is not None, f"the child ends within {PATIENCE} s"
    return said, exit_


if HERE not in sys.path:  # children find this module by the path of their parent
    sys.path.insert(0, HERE)
