"""Copies of much memory, in which cores that have nothing else to do take part."""

from __future__ import annotations

import _thread
import ctypes
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from pparallel.machine import cpus

Part = tuple[int, int, int]  #: where to, from which address, how many bytes

_LARGE = 8 << 20  #: bytes from which other threads help: starting one takes as long as 200 KB
_PIECE = 2 << 20  #: bytes that a thread takes at a time
_FEW = 2  #: pieces that are left to this thread
_MOST = 4  #: threads that keep a machine's memory busy


def copy_all(parts: Sequence[Part]) -> None:
    """Copy *parts*, none of which overlaps another's target; other threads run meanwhile.

    The addresses must be those of memory that stays until this has returned.
    """
    if sum(nbytes for _, _, nbytes in parts) < _LARGE:
        for part in parts:
            ctypes.memmove(*part)
        return
    pieces = deque(_pieces(parts))
    helpers: list[_thread.LockType] = []
    most = min(cpus.affinity(), _MOST) - 1
    unasked = _PIECE  # bytes copied since it was looked for idle cores, which takes a while
    try:
        while piece := _next(pieces):
            if len(helpers) < most and len(pieces) >= _FEW and unasked >= _PIECE:
                unasked = 0
                if not cpus.are_crowded():
                    helpers.append(_thread.allocate_lock())
                    _start(pieces, helpers[-1])
            ctypes.memmove(*piece)
            unasked += piece[2]
    finally:
        pieces.clear()  # an interrupt ends the helpers too
        for busy in helpers:
            with busy:  # a helper that has not begun yet is not waited for: it will find nothing
                pass


def lies_in_one_run(tensor: Any) -> bool:
    """Return whether all that a torch tensor holds is one piece of memory that can be copied."""
    if not tensor.is_cpu or tensor.layout is not sys.modules["torch"].strided:
        return False
    if tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg():
        return False
    return bool(tensor.is_contiguous())


def elements_overlap(shape: Sequence[int], strides: Sequence[int], size: int = 1) -> bool:
    """Return whether elements of a tensor or array may share memory, as after ``expand()``.

    Args:
        shape: of it.
        strides: of its dimensions, in the unit of *size*.
        size: of one element.
    """
    reach = size  # from the first to behind the last of the dimensions seen so far
    for stride, length in sorted((abs(step), n) for step, n in zip(strides, shape, strict=True)):
        if length > 1 and stride < reach and 0 not in shape:
            return True
        reach += max(length - 1, 0) * stride
    return False


def _start(pieces: deque[Part], busy: _thread.LockType) -> None:
    try:
        # Not threading's, which waits until the thread runs: it may be that no core is free.
        _thread.start_new_thread(_help, (pieces, busy))
    except RuntimeError:  # the system has no thread left, or the interpreter ends
        return


def _help(pieces: deque[Part], busy: _thread.LockType) -> None:
    with busy:
        while piece := _next(pieces):
            ctypes.memmove(*piece)


def _next(pieces: deque[Part]) -> Part | None:
    try:
        return pieces.popleft()
    except IndexError:  # they are all taken
        return None


def _pieces(parts: Sequence[Part]) -> Iterator[Part]:
    for to, source, nbytes in parts:
        for at in range(0, nbytes, _PIECE):
            yield to + at, source + at, min(_PIECE, nbytes - at)
