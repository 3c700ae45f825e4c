"""Shared memory of :mod:`multiprocessing` that a program makes, and a task attaches.

A process that attaches a block registers it with its resource tracker, which unlinks at its end
what is registered still: a child's tracker has to be its parent's.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pparallel.testing.patience import PATIENCE

METHODS = ("forkserver", "spawn", "fork")

ATTACHING = """
import os
from multiprocessing.shared_memory import SharedMemory

def attach(name):
    memory = SharedMemory(name)
    try:
        return memory.buf[0]
    finally:
        memory.close()

def nested(name, method):
    with pparallel.build(ProcessPoolConfig(size=1, start_method=method)) as pool:
        return pool.apply(attach, (name,))
"""

POOL = """
import pparallel
from pparallel_process import ProcessPoolConfig
{attaching}
if __name__ == "__main__":
    with pparallel.build(ProcessPoolConfig(size=1, start_method={method!r})) as pool:
        assert pool.map(abs, [-1]) == [1]
        memory = SharedMemory(create=True, size=8)  # later than the worker
        memory.buf[0] = 7
        print(pool.{call})
    memory.close()
    memory.unlink()
"""


def outcome(tmp_path: Path, program: str) -> tuple[int, str, str]:
    """Run *program*; its standard error ends when the last tracker does that it has started."""
    script = tmp_path / "program.py"
    script.write_text(program)
    command = [sys.executable, "-W", "ignore::DeprecationWarning", str(script)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize("method", METHODS)
def test_a_block_that_a_task_attaches(tmp_path: Path, method: str) -> None:
    call = "map(attach, [memory.name] * 3)"
    program = POOL.format(attaching=ATTACHING, method=method, call=call)
    assert outcome(tmp_path, program) == (0, "[7, 7, 7]\n", "")


@pytest.mark.parametrize("method", METHODS)
def test_a_block_that_a_nested_task_attaches(tmp_path: Path, method: str) -> None:
    call = f"apply(nested, (memory.name, {method!r}))"
    program = POOL.format(attaching=ATTACHING, method=method, call=call)
    assert outcome(tmp_path, program) == (0, "7\n", "")
