"""The Ray clusters of a run of the tests: one that runs already, one that pparallel starts."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Literal, TypeVar

import pytest

from pparallel.testing import Suite
from pparallel.testing.leftovers import Descriptor, Keeps, Leftover
from pparallel_ray.cluster import Cluster, RayConnection
from pparallel_ray.cluster.own import cleaned_up

Kind = Literal["running", "own"]

#: CPUs are what Ray counts by, not what there are: what a test starts must fit in all at once.
CPUS = 16
RESOURCES = {"shelf": 4}
STORE = 160 << 20
PATIENCE = 120.0

# ``ray start`` takes the machine's own address in place of 127.0.0.1.
_ON_LOOPBACK = """
from ray._private import services
services.get_node_ip_address = lambda *_: "127.0.0.1"
from ray.scripts.scripts import main
main()
"""
RAY_START = (sys.executable, "-c", _ON_LOOPBACK, "start", "--block", "--disable-usage-stats")

_RAYS_FILES = ("plasma", "/logs/python-core-", "/logs/events/", "/logs/export_events/")


class Clusters:
    """The cluster that this process is connected to: one kind at a time, kept until another's.

    To connect for each test would be slow, and what Ray opens when it likes could not be told from
    what a test leaves behind.
    """

    def __init__(self) -> None:
        self._lifetime = ExitStack()
        self._connection = ExitStack()
        self._address: str | None = None
        self._kind: Kind | None = None

    def use(self, kind: Kind) -> RayConnection:
        """Connect to a cluster of that kind, and return the config that uses it."""
        if kind != self._kind:
            self.disconnect()
            own = RayConnection(num_cpus=CPUS, resources=RESOURCES, object_store_memory=STORE)
            wanted = RayConnection(address=self.address()) if kind == "running" else own
            self._connection.enter_context(Cluster(wanted))
            self._kind = kind
        return RayConnection(address=self._address) if kind == "running" else RayConnection()

    def address(self) -> str:
        """Return where the cluster is found that runs already."""
        if self._address is None:
            self._address = self._lifetime.enter_context(running())
        return self._address

    def disconnect(self) -> None:
        """Leave this process unconnected, for tests of how it connects."""
        self._kind = None
        self._connection.close()

    def close(self) -> None:
        self.disconnect()
        self._lifetime.close()


@contextmanager
def running() -> Iterator[str]:
    """Start a cluster as people do, with ``ray start``; yields its address."""
    with (
        tempfile.TemporaryDirectory(prefix="ppr", ignore_cleanup_errors=True) as folder,
        cleaned_up(folder),
    ):
        command = [*RAY_START, "--head", "--port=0", f"--num-cpus={CPUS}"]
        command += ["--include-dashboard=false", f"--temp-dir={folder}"]
        command += [f"--object-store-memory={STORE}", '--resources={"shelf": 4}']
        log = Path(folder, "start.log")
        with log.open("w") as out:
            head = subprocess.Popen(
                command,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield _address(Path(folder, "ray_current_cluster"), head, log)
        finally:
            head.terminate()
            with suppress(subprocess.TimeoutExpired):
                head.wait(10)
            with suppress(ProcessLookupError):
                os.killpg(head.pid, signal.SIGKILL)
            head.wait()


def _address(found: Path, head: subprocess.Popen[bytes], log: Path) -> str:
    end, pause = monotonic() + PATIENCE, threading.Event()
    while monotonic() < end:
        if head.poll() is not None:
            break
        if found.exists() and "Ray runtime started" in log.read_text():
            return found.read_text().strip()
        pause.wait(0.05)
    message = f"no Ray cluster has started: {log.read_text()}"
    raise AssertionError(message)


@contextmanager
def token() -> Iterator[None]:
    """Have all clusters of this run ask for a token that only this run knows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        patch.delenv("RAY_ADDRESS", raising=False)
        yield


T = TypeVar("T", bound=type[Suite])


def only(*laws: str) -> Callable[[T], T]:
    """Run these tests of a suite, which is run whole elsewhere."""

    def thin(suite: T) -> T:
        tests = {each for each in dir(suite) if each.startswith("test")}
        assert tests.issuperset(laws)
        for each in tests.difference(laws):
            setattr(suite, each, None)
        return suite

    return thin


class OnRunningCluster:
    """A suite's backend on a Ray cluster that runs already: goes before the suite."""

    @pytest.fixture
    def cluster(self, clusters: Clusters) -> RayConnection:
        return clusters.use("running")

    @pytest.fixture
    def surroundings(self, cluster: RayConnection) -> Keeps:
        return belongs_to_ray


class OnOwnCluster:
    """A suite's backend on a Ray cluster that pparallel has started: goes before the suite."""

    @pytest.fixture
    def cluster(self, clusters: Clusters) -> RayConnection:
        return clusters.use("own")

    @pytest.fixture
    def surroundings(self, cluster: RayConnection) -> Keeps:
        return belongs_to_ray


def belongs_to_ray(left: Leftover) -> bool:
    """Return whether *left* is Ray's: it opens connections, and maps memory, when it likes."""
    if isinstance(left, threading.Thread):
        return left.name.startswith(("ray_", "Thread-ray")) or "ray" in type(left).__module__
    if isinstance(left, Descriptor):
        return _is_rays(left)
    return False


def _is_rays(left: Descriptor) -> bool:
    """Return whether a descriptor is one that Ray's C++ has opened.

    No object of Python's stands for those, as one does for each socket that our code opens.
    """
    if left.target.startswith("socket:"):
        return left.number not in _sockets_of_python()
    if left.target.startswith("anon_inode:"):
        return left.target.endswith(("[eventpoll]", "[eventfd]", "[timerfd]"))
    return any(part in left.target for part in _RAYS_FILES)


def _sockets_of_python() -> set[int]:
    import gc
    import socket

    return {each.fileno() for each in gc.get_objects() if issubclass(type(each), socket.socket)}
