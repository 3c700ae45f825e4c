"""Resources that have run out, for tests."""

from __future__ import annotations

import contextlib
import os
import resource
import threading
from collections.abc import Iterator

import pytest


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """Let this process open nothing more inside."""
    with contextlib.ExitStack() as stack:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        highest = max(int(each) for each in os.listdir("/proc/self/fd"))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(highest):
            stack.callback(os.close, os.open("/dev/null", os.O_RDONLY))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
        yield


@contextlib.contextmanager
def no_threads(*names: str) -> Iterator[None]:
    """Let no thread start inside; with *names*: none that is called so."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if not names or thread.name in names:
            raise RuntimeError("can't start new thread")
        start(thread)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        yield
