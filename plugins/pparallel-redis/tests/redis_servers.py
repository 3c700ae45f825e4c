"""Real servers for the tests: started, killed, paused and started again."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest
import redis

from pparallel.testing import Suite
from pparallel.testing.patience import PATIENCE, until
from pparallel_redis import RedisOrderedServerConfig

PASSWORD = "correct-horse-battery"  #: of all servers here
DURABLE = ("--appendonly", "yes", "--appendfsync", "always")


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


def need(program: str) -> None:
    """Skip a test where *program* is not installed; where all must be, fail."""
    if shutil.which(program) is None:
        message = f"the program {program} is not installed (apt-get install {program})"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)


@contextmanager
def held_port() -> Iterator[int]:
    """Give a port that nobody else gets meanwhile: only a server may listen on it."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


class RedisServer:
    """A server's process, with a folder of its own.

    Args:
        folder: for its socket and its files.
        options: of the command line, besides.
        program: which one it is.
        config: a file that comes before the options.
    """

    def __init__(
        self,
        folder: Path,
        options: Sequence[str] = (),
        program: str = "redis-server",
        config: Path | None = None,
    ) -> None:
        need(program)
        self.folder = folder
        self._lifetime = ExitStack()
        self.port = self._lifetime.enter_context(held_port())
        self.socket = folder / "socket"
        self._program, self._options = program, list(options)
        self._config = [] if config is None else [str(config)]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def unix(self) -> str:
        """The url of its socket, with the password."""
        return f"unix://:{PASSWORD}@{self.socket}"

    @property
    def tcp(self) -> str:
        """The url of its port, with the password."""
        return f"redis://:{PASSWORD}@127.0.0.1:{self.port}"

    def config(self, namespace: str = "tests", **options: Any) -> RedisOrderedServerConfig:
        """Return the config of what uses it."""
        given = {"url": self.unix, "namespace": namespace, **options}
        return RedisOrderedServerConfig(**given)

    def peek(self) -> redis.Redis:
        """Return another client, to look behind the backend's back."""
        path = str(self.socket)
        return redis.Redis(unix_socket_path=path, password=PASSWORD, socket_timeout=PATIENCE)

    def peek_at(self, pattern: str) -> list[bytes]:
        """Return the keys that fit *pattern*."""
        with self.peek() as client:
            return sorted(client.keys(pattern))

    def start(self) -> None:
        """Start it on the files that it left; return when it answers."""
        self.kill()
        places = ["--port", str(self.port), "--bind", "127.0.0.1", "--unixsocket", str(self.socket)]
        command = [self._program, *self._config, *places, "--dir", str(self.folder)]
        command += ["--requirepass", PASSWORD, "--daemonize", "no", "--loglevel", "warning"]
        command += [] if self._config else ["--save", ""]
        command += self._options
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        until(self._answers, "redis-server does not answer")

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it as ``kill -9`` does; safe to call again."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(PATIENCE)
            with suppress(FileNotFoundError):
                self.socket.unlink()

    def close(self) -> None:
        """End it, and let go of its port."""
        self.kill()
        self._lifetime.close()

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "log").read_text()
        with self.peek() as client:
            try:
                return bool(client.ping())
            except (redis.ConnectionError, redis.ResponseError):
                return False


@contextmanager
def running(*options: str) -> Iterator[RedisServer]:
    """Give a server in a new folder, whose name is short enough for a socket."""
    with (
        tempfile.TemporaryDirectory(prefix="redis-") as folder,
        closing(RedisServer(Path(folder), options)) as server,
    ):
        server.start()
        yield server
