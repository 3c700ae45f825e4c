"""Where pools are let in, while no descriptor is left."""

from __future__ import annotations

import os
import resource
import selectors
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from pparallel.testing.patience import until
from pparallel_ray.pool.wire.admission import Door


@contextmanager
def without_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    folder = "/proc/self/fd"  # to list it takes a descriptor, which is there no more
    taken = {int(each) for each in os.listdir(folder) if os.path.lexists(f"{folder}/{each}")}
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (next(each for each in range(soft) if each not in taken), hard)
    )
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_door_rests_while_no_descriptor_is_left(caplog: pytest.LogCaptureFixture) -> None:
    def turn(timeout: float) -> int:
        found = selector.select(timeout)
        for key, _ in found:
            key.data()
        door.tidy()
        return len(found)

    with selectors.DefaultSelector() as selector, socket.socket() as guest:
        door = Door("127.0.0.1", b"key", selector, lambda *_: None)
        with closing(door):
            guest.connect(("127.0.0.1", door.port))
            with without_descriptors():
                assert turn(5.0) == 1
                assert turn(0.0) == 0, "it is not woken again at once"
                until(lambda: turn(0.05) > 0, "it was not woken after a pause")
            assert caplog.text.count("no pool can be admitted for now") == 1
            guest.settimeout(0.0)
            until(lambda: turn(0.05) == 0 and bool(_heard(guest)), "the guest heard nothing")


def _heard(guest: socket.socket) -> bytes:
    try:
        return guest.recv(32)
    except BlockingIOError:
        return b""
