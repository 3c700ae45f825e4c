"""Contiguous memory as one view of its bytes."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from pparallel.runtime.flat_views import flat

MATRIX: Any = np.arange(6, dtype=">i4").reshape(2, 3)
FORTRAN: Any = np.asfortranarray(np.arange(6.0).reshape(2, 3))

NOTHING: Any = np.zeros((0, 3))
SCALAR: Any = np.float32(1)

CYCLES = """
import gc
from pparallel.runtime.flat_views import flat

gc.disable()

def fail() -> None:
    whole = memoryview(bytearray(64)).cast("f", [4, 4])
    views = [flat(whole), flat(memoryview(bytearray(8)))]
    try:
        raise ValueError
    except ValueError as error:
        views.append(error)  # whose traceback has this frame

for _ in range(1000):
    fail()
print(gc.collect() > 0)
"""


@pytest.mark.parametrize(
    "buffer",
    [
        b"abc",
        bytearray(b"abc"),
        memoryview(b"abc")[1:],
        memoryview(b""),
        memoryview(bytearray(12)).cast("f"),
        memoryview(bytearray(12)).cast("f", [3, 1]),
        MATRIX,
        memoryview(MATRIX),
        FORTRAN,
        memoryview(FORTRAN),
        memoryview(NOTHING),
        memoryview(SCALAR),
    ],
)
def test_bytes_as_they_lie_in_memory(buffer: bytes) -> None:
    view = flat(buffer)
    assert (view.format, view.ndim, view.itemsize) == ("B", 1, 1)
    assert view.readonly == memoryview(buffer).readonly
    assert bytes(view) == memoryview(buffer).tobytes(order="A")


def test_memory_with_gaps_is_refused() -> None:
    with pytest.raises(BufferError):
        flat(memoryview(b"abcdef")[::2])


def test_the_garbage_collector_may_break_a_cycle_with_them() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CYCLES], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
