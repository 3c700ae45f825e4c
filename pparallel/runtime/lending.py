"""Keeps objects alive until the receiver of a reference to them acknowledges it.

A receipt travels along. Whoever has received writes its number into a pipe of the sender's, which
lets go of what it has lent the next time that it lends. What is lost on the way is kept for good.
"""

from __future__ import annotations

import array
import fcntl
import itertools
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from typing_extensions import Buffer

from pparallel.runtime.reopening import handle, reopened

_MARK = b"\0"  #: no serializer's bytes begin with it
_RECEIPT = struct.Struct("<IIQQQ")  #: pid, descriptor, device, inode, number
_PIPE = 1 << 20  #: bytes that it holds: 131,072 receipts
_READ = 1 << 16


class _Here(threading.local):
    noted: list[object] | None = None


_here = _Here()


@contextmanager
def noted() -> Iterator[list[object]]:
    """Yield a list of what :func:`note` is told of by this thread inside."""
    before, _here.noted = _here.noted, []
    try:
        yield _here.noted
    finally:
        _here.noted = before


def note(obj: object) -> None:
    """Say that only a reference to *obj* is sent."""
    if _here.noted is not None:
        _here.noted.append(obj)


class _Books:
    """What this process has lent."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lent: dict[int, list[object]] = {}
        self._numbers = itertools.count(1)
        self._pipe: tuple[int, int] | None = None

    def lend(self, objects: list[object]) -> bytes:
        """Keep *objects*; return their receipt."""
        with self._lock:
            if self._pipe is None:
                self._pipe = _pipe()
            self._look()
            number = next(self._numbers)
            self._lent[number] = objects
            return _MARK + _RECEIPT.pack(*handle(self._pipe[0]), number)

    def tidy(self) -> None:
        """Let go of what has arrived, unless another thread is at it: a finaliser may call this."""
        if self._pipe is not None and self._lock.acquire(blocking=False):
            try:
                self._look()
                if not self._lent:
                    self.close()
            finally:
                self._lock.release()

    def close(self) -> None:
        """Give the descriptors back."""
        if self._pipe is not None:
            for each in self._pipe:
                os.close(each)
            self._pipe = None

    def _look(self) -> None:
        assert self._pipe is not None
        with suppress(BlockingIOError):
            while found := os.read(self._pipe[0], _READ):
                for number in array.array("Q", found):
                    self._lent.pop(number, None)


def _pipe() -> tuple[int, int]:
    pipe = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    with suppress(OSError):  # more than this user may have
        fcntl.fcntl(pipe[1], fcntl.F_SETPIPE_SZ, _PIPE)
    return pipe


_books = _Books()


def receipt_for(objects: list[object]) -> bytes:
    """Keep *objects* until :func:`give_back` is called with what this returns, in any process.

    Raises:
        OSError: no descriptor is left.
    """
    return _books.lend(objects)


def tidy() -> None:
    """Let go of what has arrived."""
    _books.tidy()


def is_receipt(buffer: Buffer) -> bool:
    """Return whether *buffer* is a receipt."""
    return bytes(memoryview(buffer)[:1]) == _MARK


def give_back(receipt: Buffer) -> None:
    """Have whoever lent something let go of it."""
    pid, descriptor, device, inode, number = _RECEIPT.unpack(memoryview(receipt)[1:])
    with suppress(OSError):  # it has ended
        found = pid, descriptor, device, inode
        writing = reopened(found, os.O_WRONLY | os.O_NONBLOCK, "what was lent")
        try:
            os.write(writing, array.array("Q", (number,)))
        finally:
            os.close(writing)


def _forget() -> None:
    global _books
    inherited, _books = _books, _Books()
    inherited.close()  # its parent keeps what it lent


os.register_at_fork(after_in_child=_forget)
