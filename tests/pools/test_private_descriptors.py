"""Descriptors that no forked child has, from the moment that they are made."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Sequence
from typing import NoReturn

from pparallel.runtime.processes import close_private, private
from pparallel.testing.patience import PATIENCE

FAILED = 99  #: what a child ends with that could not look


def exits_with_copies(made: Sequence[tuple[int, os.stat_result]]) -> NoReturn:
    """End this child with the number of those that it has a copy of, by their descriptors.

    It may come late, and descriptors have been closed, or are others, by then.
    """
    copies = FAILED
    try:
        copies = sum(is_open_here(number, was) for number, was in made)
    finally:
        os._exit(copies)


def is_open_here(number: int, was: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.fstat(number), was)
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
        return False


def test_no_fork_comes_before_a_descriptor_is_private() -> None:
    forked, forking = threading.Event(), threading.Event()
    number, made = -1, os.fstat(0)
    children: list[int] = []

    def fork() -> None:
        forking.set()
        child = os.fork()
        if not child:
            exits_with_copies([(number, made)])
        children.append(child)
        forked.set()

    def make() -> tuple[socket.socket, socket.socket]:
        nonlocal number, made
        ends = socket.socketpair()
        number, made = ends[0].fileno(), os.fstat(ends[0].fileno())
        thread.start()
        assert forking.wait(PATIENCE)
        assert not forked.wait(0.1)
        return ends

    thread = threading.Thread(target=fork)
    both = private(make)
    thread.join(PATIENCE)
    close_private(*both)
    _, status = os.waitpid(children[0], 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert not any(each.fileno() >= 0 for each in both)
