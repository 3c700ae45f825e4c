"""Descriptors that no forked child has, from the moment that they are made."""

from __future__ import annotations

import os
import socket
import threading

from pparallel.runtime.processes import close_private, private
from pparallel.testing.patience import PATIENCE


def test_no_fork_comes_before_a_descriptor_is_private() -> None:
    forked, forking = threading.Event(), threading.Event()
    number = -1
    children: list[int] = []

    def fork() -> None:
        forking.set()
        child = os.fork()
        if not child:
            os._exit(0 if os.path.samefile(f"/proc/self/fd/{number}", os.devnull) else 1)
        children.append(child)
        forked.set()

    def make() -> tuple[socket.socket, socket.socket]:
        nonlocal number
        made = socket.socketpair()
        number = made[0].fileno()
        thread.start()
        assert forking.wait(PATIENCE)
        assert not forked.wait(0.1)
        return made

    thread = threading.Thread(target=fork)
    made = private(make)
    thread.join(PATIENCE)
    close_private(*made)
    _, status = os.waitpid(children[0], 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert not any(each.fileno() >= 0 for each in made)
