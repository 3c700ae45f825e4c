"""Members on ZeroMQ that lack descriptors."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
import zmq
from zmq_peer import PLACES, Asking, meeting, opened, peers, transport

from pparallel.errors import ResourceExhaustedError
from pparallel.runtime.links import ProcessId
from pparallel.testing.patience import until
from pparallel_zmq import sockets


def test_connection_that_cannot_be_made_is_an_error_and_the_next_message_makes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(*_: object) -> object:
        raise zmq.ZMQError(errno.EMFILE)

    names = ["m0", "m1", "m2"]
    with meeting(names) as met, peers(["m0", "m2"], names, met) as others:
        own = transport("m1", names, met, liveness_bound=5.0)
        with opened(own) as asking:
            assert [each.opened() for each in others] == ["open", "open"]
            before = psutil.Process().num_fds()
            with monkeypatch.context() as patched:
                patched.setattr(sockets.Sockets, "monitor", failing)
                with pytest.raises(ResourceExhaustedError, match="file descriptors"):
                    own.send("m2", [b"here"])
            until(lambda: psutil.Process().num_fds() <= before, "sockets are left")
            assert asking.call("m2", [b"here"], 5)


def test_opening_that_fails_once_there_are_sockets_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing() -> ProcessId:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    names = ["m0", "m1"]
    with meeting(names, PLACES[1]) as met:
        own = transport("m0", names, met)
        before = psutil.Process().num_fds()
        monkeypatch.setattr(ProcessId, "here", failing)
        with pytest.raises(ResourceExhaustedError, match="file descriptors"):
            own.open(Asking(own))
        own.close()
        assert not [each for each in threading.enumerate() if each.name == "m0-zmq"]
        assert psutil.Process().num_fds() == before


#: in a process of its own, for libzmq may end one that lacks descriptors
PROGRAM = """
import os, resource
from zmq_peer import Asking, meeting, transport
from pparallel.errors import CallTimeoutError, ResourceExhaustedError
from pparallel.testing.threads import in_threads

NAMES = ["m0", "m1"]


def end_of_opening(own):
    try:
        own.open(Asking(own))
        return "open"
    except ResourceExhaustedError as error:
        assert "ulimit -n" in str(error), error
        return "exhausted"
    except CallTimeoutError:  # the other one lacks them
        return "alone"


with meeting(NAMES) as met:
    resource.setrlimit(resource.RLIMIT_NOFILE, (120, 120))
    held = []
    try:
        while True:
            held.append(os.dup(0))
    except OSError:
        pass
    free = 0
    for left in (0, 4, 8, 20, 30, 47):
        while free < left:
            os.close(held.pop())
            free += 1
        both = [transport(name, NAMES, met, rendezvous_timeout=0.2) for name in NAMES]
        ends = in_threads(2, lambda n: end_of_opening(both[n]))
        for own in both:
            own.close()
        assert left > 8 or ends == ["exhausted"] * 2, ends
    assert len(os.listdir("/proc/self/fd")) <= 120 - left + 1
"""


def test_members_that_lack_descriptors_fail_to_open_and_do_not_end_the_process() -> None:
    command = [sys.executable, "-W", "error", "-c", PROGRAM]
    helpers = Path(__file__).parents[1] / "helpers"
    assert subprocess.run(command, cwd=helpers, check=False).returncode == 0
