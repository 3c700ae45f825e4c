"""A descriptor by which a thread is told to look."""

from __future__ import annotations

import gc
import os
import select

from pparallel.runtime.event_fd import EventFd


def is_set(event: EventFd) -> bool:
    poll = select.poll()
    poll.register(event.fd, select.POLLIN)
    return bool(poll.poll(0))


def test_it_is_readable_while_it_is_set() -> None:
    event = EventFd()
    assert not is_set(event)
    event.clear()
    event.set()
    event.set()
    assert is_set(event)
    event.clear()
    assert not is_set(event)
    event.close()


def test_what_is_closed_may_be_used_and_closed_again() -> None:
    event = EventFd()
    number = event.fd
    event.close()
    other = os.open(os.devnull, os.O_RDWR)  # mostly of the same number
    assert other == number
    for act in (event.set, event.clear, event.close):
        act()
    assert event.fd == -1
    os.close(other)


def test_one_that_is_lost_closes_itself_and_a_fork_has_none() -> None:
    event = EventFd()
    child = os.fork()
    if not child:
        os._exit(0 if os.path.samefile(f"/proc/self/fd/{event.fd}", os.devnull) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    number = event.fd
    del event
    gc.collect()
    assert not os.path.exists(f"/proc/self/fd/{number}")
