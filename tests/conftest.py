from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import preloads
import pytest
from hypothesis import settings
from warm_interpreter import WarmInterpreter

from pparallel.runtime.processes import client
from pparallel.testing import Suite, no_leftovers
from pparallel.testing.threads import switching_often

# The gate tries the same examples in each run; the soak tries others.
settings.register_profile("gate", deadline=None, derandomize=True, database=None)
settings.load_profile("gate")
SOAK = Path(__file__).parent / "soak"

_start = client.start
client.start = lambda request, fds, preload: _start(request, fds, preloads.shared(preload))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell has what it runs in the background ignore Ctrl-C, and so would all programs of the
    # tests: what they do then is tested.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Detach forked children from the pipes of xdist: its controller sees this process end."""
    for each in config.pluginmanager.get_plugins():
        if channel := getattr(each, "channel", None):
            pipes = channel.gateway._io
            numbers = pipes.infile.fileno(), pipes.outfile.fileno()
            os.register_at_fork(after_in_child=partial(_let_go, *numbers))


def _let_go(*descriptors: int) -> None:
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for each in descriptors:
        os.dup2(null, each, inheritable=False)
    os.close(null)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the soak out, unless it is asked for."""
    given = [Path(each).resolve() for each in config.args]
    wanted = any(each.is_relative_to(SOAK) for each in given)
    return True if collection_path == SOAK and not wanted else None


def pytest_collection_finish() -> None:
    if "torch" in sys.modules:
        importlib.import_module("one_thread")
    gc.collect()
    gc.freeze()  # what is imported by now need not be searched after every test


@pytest.fixture
def impatient_interpreter() -> Iterator[None]:
    """Threads change places hundreds of times as often: what can happen between two, does."""
    with switching_often():
        yield


@pytest.fixture(scope="session")
def warm_torch() -> Iterator[WarmInterpreter]:
    """An interpreter that has imported torch; each program is a fork of it."""
    with WarmInterpreter() as interpreter:
        yield interpreter


@pytest.fixture(autouse=True)
def _nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    if isinstance(request.cls, type) and issubclass(request.cls, Suite):  # it looks for itself
        yield
        return
    with no_leftovers():
        yield
