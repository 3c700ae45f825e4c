"""What a forked child must not keep of its parent: descriptors that mean the parent by being open.

A socket whose other end waits for end-of-file never gets one while a child holds a copy. In the
child of a fork, ours or the user's own, such a descriptor becomes one of ``/dev/null``: its number
stays taken, so that the object that owns it may close it later and hit nothing else.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar


class _Private:
    def __init__(self) -> None:
        self.forking = threading.RLock()
        self.descriptors: set[int] = set()
        self.kept: dict[int, frozenset[int]] = {}  #: by the thread that forks a child to have them

    def before(self) -> None:
        self.forking.acquire()

    def in_parent(self) -> None:
        self.forking.release()

    def in_child(self) -> None:
        forgotten = self.descriptors - self.kept.get(threading.get_ident(), frozenset())
        self.__init__()  # type: ignore[misc]
        if forgotten:
            _replace(forgotten)


def _replace(forgotten: Iterable[int]) -> None:
    try:
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # no descriptor is left
        for each in forgotten:
            os.close(each)
        return
    for each in forgotten:
        os.dup2(null, each, inheritable=False)
    os.close(null)


_private = _Private()
os.register_at_fork(
    before=_private.before,
    after_in_parent=_private.in_parent,
    after_in_child=_private.in_child,
)


class HasDescriptor(Protocol):
    """A socket, or what else owns a descriptor."""

    def fileno(self) -> int:
        """Return the descriptor; -1: it is closed, or another's by now."""

    def close(self) -> object:
        """Close it."""


Made = TypeVar("Made", bound="int | HasDescriptor | tuple[int | HasDescriptor, ...]")


def private(make: Callable[[], Made]) -> Made:
    """Return what *make* makes, which no child has that this process forks.

    No fork comes between the two; :func:`close_private` is the opposite.

    Args:
        make: returns a descriptor, a socket or another object with ``fileno()``, or a tuple of
            them, as ``socket.socketpair`` does.
    """
    with no_fork():
        made = make()
        numbers = map(_number, made if isinstance(made, tuple) else (made,))
        forget_in_children(*(each for each in numbers if each >= 0))
    return made


def close_private(*made: int | HasDescriptor) -> None:
    """Close what :func:`private` has made; sockets that are closed already are passed by."""
    with no_fork():
        for each in made:
            remember_in_children(_number(each))
            if isinstance(each, int):
                os.close(each)
            else:
                each.close()


def _number(made: int | HasDescriptor) -> int:
    return made if isinstance(made, int) else made.fileno()


@contextmanager
def no_fork() -> Iterator[None]:
    """Keep other threads from forking; for the moment between making descriptors and naming them.

    The same holds between closing them and :func:`remember_in_children`.
    """
    with _private.forking:
        yield


@contextmanager
def kept(descriptors: Iterable[int]) -> Iterator[None]:
    """Let the child that this thread forks inside keep these descriptors."""
    me = threading.get_ident()
    _private.kept[me] = frozenset(descriptors)
    try:
        yield
    finally:
        _private.kept.pop(me, None)


def forget_in_children(*descriptors: int) -> None:
    """Take these descriptors from the children that this process forks from now on."""
    _private.descriptors.update(descriptors)


def remember_in_children(*descriptors: int) -> None:
    """Undo :func:`forget_in_children`, as the descriptors are closed: the numbers are free."""
    _private.descriptors.difference_update(descriptors)
