"""Copies of much memory, in which the cores that this process may use take part."""

from __future__ import annotations

import _thread
import ctypes
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from pparallel.machine.cpus import idle_cpus

Part = tuple[int, int, int]  #: where to, from which address, how many bytes

_LARGE = 8 << 20  #: bytes from which other threads help: starting one takes as long as 200 KB
_PIECE = 2 << 20  #: bytes that a thread takes at a time
_MOST = 4  #: threads that keep a machine's memory busy


def copy_all(parts: Sequence[Part]) -> None:
    """Copy *parts*, none of which overlaps another's target; other threads run meanwhile.

    The addresses must be those of memory that stays until this has returned.
    """
    nbytes = sum(each for _, _, each in parts)
    if nbytes < _LARGE or not (helpers := min(idle_cpus(), nbytes // _LARGE, _MOST - 1)):
        _work(deque(parts))
        return
    pieces = deque(_pieces(parts))
    busy = [_thread.allocate_lock() for _ in range(helpers)]
    try:
        for each in busy:
            _start(pieces, each)
        _work(pieces)
    finally:
        pieces.clear()  # an interrupt ends the helpers too
        for each in busy:
            with each:  # a helper that has not begun yet is not waited for: it will find nothing
                pass


def lies_in_one_run(tensor: Any) -> bool:
    """Return whether all that a torch tensor holds is one piece of memory that can be copied."""
    if not tensor.is_cpu or tensor.layout is not sys.modules["torch"].strided:
        return False
    if tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg():
        return False
    return bool(tensor.is_contiguous())


def _start(pieces: deque[Part], busy: _thread.LockType) -> None:
    try:
        # Not threading's, which waits until the thread runs: it may be that no core is free.
        _thread.start_new_thread(_help, (pieces, busy))
    except RuntimeError:  # the system has no thread left, or the interpreter ends
        return


def _help(pieces: deque[Part], busy: _thread.LockType) -> None:
    with busy:
        _work(pieces)


def _work(pieces: deque[Part]) -> None:
    while pieces:
        try:
            piece = pieces.popleft()
        except IndexError:  # another thread took the last
            return
        ctypes.memmove(*piece)


def _pieces(parts: Sequence[Part]) -> Iterator[Part]:
    for to, source, nbytes in parts:
        for at in range(0, nbytes, _PIECE):
            yield to + at, source + at, min(_PIECE, nbytes - at)
