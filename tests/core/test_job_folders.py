"""Folders in which members meet: those that killed launchers have left are removed."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from typer.testing import CliRunner

import pparallel
from pparallel.cli import app
from pparallel.errors import ResourceExhaustedError
from pparallel.registry import default_registry
from pparallel.testing.patience import PATIENCE
from pparallel_torch import TorchrunLauncherConfig

HOLD = """
import os, sys
import pparallel
def hold(rt):
    if rt.member.rank == 0:
        print("up", flush=True)
    sys.stdin.read()
backends = {"launcher": {"backend": "thread"}, "transport": {"backend": sys.argv[1]}}
raw = {"members": 2, **backends}
pparallel.launch(raw, hold)
"""


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ppf-") as made:
        monkeypatch.setenv("TMPDIR", made)
        monkeypatch.setattr(tempfile, "tempdir", None)
        yield Path(made)


def holding(transport: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, transport], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


@pytest.mark.parametrize("transport", ["ipc", "zmq"])
def test_what_a_killed_launcher_leaves_is_removed_by_the_next(
    temporary: Path, transport: str
) -> None:
    other = temporary / "pparallel-of-another-program"
    other.mkdir()
    with holding(transport) as killed, holding(transport) as alive:
        for each in (killed, alive):
            assert each.stdout is not None
            assert each.stdout.readline() == b"up\n"
        both = set(temporary.iterdir()) - {other}
        killed.send_signal(signal.SIGKILL)
        killed.wait(PATIENCE)
        backends = {"launcher": {"backend": "thread"}, "transport": {"backend": transport}}
        counted = pparallel.launch(
            {"members": 2, **backends}, lambda rt: len(list(temporary.iterdir()))
        )
        assert counted == [3, 3]
        assert len(set(temporary.iterdir()) & both) == 1, "one is in use"
        alive.communicate()
    assert alive.returncode == 0
    assert set(temporary.iterdir()) == {other}


def refuse(*_: object, **__: object) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("backend", ["ipc", "zmq", "torch_rpc"])
def test_a_full_disk_is_named_and_the_next_launch_works(
    temporary: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {"launcher": {"backend": "process"}, "transport": {"backend": backend}}
    config = pparallel.load({"members": 2, **parts}).transport
    assert config is not None
    transport = default_registry().load(default_registry().find("transport", backend))
    with monkeypatch.context() as full:
        full.setattr(os, "mkdir", refuse)
        with (
            pytest.raises(ResourceExhaustedError, match="disk space"),
            transport.meeting(config, ["a", "b"]),
        ):
            pytest.fail("there was room")
    with transport.meeting(config, ["a", "b"]):
        assert len(list(temporary.iterdir())) == 1
    assert not list(temporary.iterdir())


def test_a_disk_that_is_full_as_torchrun_starts_leaves_nothing(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pparallel.build(TorchrunLauncherConfig()) as launcher:
        monkeypatch.setattr(Path, "write_text", refuse)
        with pytest.raises(ResourceExhaustedError, match="disk space"):
            launcher.spawn(abs, nprocs=1)
    assert not list(temporary.iterdir())


def test_a_key_file_for_which_there_is_no_room_is_written_later(tmp_path: Path) -> None:
    arguments = ["keys", "new", str(tmp_path), "--members", "a,b"]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        done = CliRunner().invoke(app, arguments)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert done.exit_code == 2
    assert f"{tmp_path}/a.keys: " in done.output
    assert not list(tmp_path.iterdir())
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert len(list(tmp_path.iterdir())) == 2
