"""What cannot be started says so, loses nothing, and does not spoil the next start."""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NoReturn
from unittest.mock import ANY

import pytest
from descriptors import few_descriptors
from process_children import TARGET, child, each_method, line, outcome

from pparallel.errors import PparallelError, ResourceExhaustedError
from pparallel.runtime.processes import StartMethod, helpers, start
from pparallel.testing.patience import PATIENCE, until


def kill_servers() -> None:
    """Have the next start launch a server."""
    for each in helpers()[0]:
        with suppress(ProcessLookupError):  # another thread has seen that it was killed already
            os.kill(each, signal.SIGKILL)


# -- the interpreter ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "executable", "why"),
    [
        ("forkserver", None, "is empty"),
        ("spawn", "", "is empty"),
        ("spawn", "/nowhere/python", "'/nowhere/python' is not there"),
        ("forkserver", os.devnull, "cannot be run"),
    ],
)
def test_no_interpreter(
    method: StartMethod, executable: str | None, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_servers()
    monkeypatch.setattr(sys, "executable", executable)
    with pytest.raises(PparallelError, match=f"(?s){why}.*method='fork'.*start_method: fork"):
        outcome("pass", method=method, preload=["sndhdr_is_gone"])
    monkeypatch.undo()
    assert outcome("say(1)", method=method)[0] == ["1"]


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_frozen_program_is_no_interpreter(
    method: StartMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_servers()
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(PparallelError, match="frozen program"):
        outcome("pass", method=method, preload=["dis"])


def test_an_interpreter_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\nexit 42\n")
    script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(script))
    with pytest.raises(PparallelError, match=r"ended with code 42.*method='fork'"):
        outcome("pass", preload=["dis"])


def test_what_cannot_be_preloaded_is_told_and_may_be_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "being_written.py"
    module.write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(PparallelError, match=r"(?s)'being_written'.*ZeroDivisionError"):
        outcome("pass", preload=["being_written"])
    module.write_text("import os\npid = os.getpid()\n")
    code = "import os, being_written as b; say(os.getpid() != b.pid == os.getppid())"
    assert outcome(code, preload=["being_written"])[0] == ["True"]
    assert outcome(code, preload=["being_written"])[0] == ["True"]


def test_one_server_for_each_set_of_preloads() -> None:
    outcome("pass", preload=["cmd"])
    servers = helpers()[0]
    outcome("pass", preload=["cmd"])
    assert helpers()[0] == servers
    outcome("pass", preload=["cmd", "bdb"])
    assert len(helpers()[0] - servers) == 1


# -- the system's limits --------------------------------------------------------------------------


@each_method
def test_no_descriptors_left(method: StartMethod) -> None:
    end, begun = os.pipe()
    outcome("pass", method=method)
    refused = 0
    for spare in range(0, 12, 2):
        with few_descriptors(spare):
            try:
                process = start(TARGET, b"pass", [end], method=method)
            except OSError as error:
                assert error.errno == errno.EMFILE  # noqa: PT017 - it is raised now and then
                refused += 1
                continue
        ended = process.ended(PATIENCE)
        process.close()
        assert ended is not None
        assert ended.code == 0
    assert 0 < refused < 6
    os.close(end)
    os.close(begun)


def test_a_server_without_descriptors_refuses() -> None:
    before = helpers()[0]
    outcome("pass", preload=["code"])
    [server] = helpers()[0] - before
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.prlimit(server, resource.RLIMIT_NOFILE, (40, hard))
    with pytest.raises(OSError, match="fork server has no descriptors left"):
        outcome("pass", [0] * 60, preload=["code"])
    assert outcome("say(1)", [0] * 5, preload=["code"])[0] == ["1"]
    assert server in helpers()[0]
    assert len(os.listdir(f"/proc/{server}/fd")) < 10


# -- what fails once ------------------------------------------------------------------------------


def test_how_a_process_ended_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(descriptor: int, size: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with child("raise SystemExit(3)") as (process, _):
        monkeypatch.setattr(os, "read", fail)
        ended = process.ended(PATIENCE)
        monkeypatch.undo()
    assert ended is not None
    assert ended.code is None
    assert "has ended cannot be read" in caplog.text


FAILING_SENDS = """
import errno, os, socket
left, send = {count}, socket.socket.sendmsg
def fail(self, buffers, *args):
    global left
    if left and bytes(buffers[0][:1]) == {kind!r}:
        left -= 1
        raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))
    return send(self, buffers, *args)
socket.socket.sendmsg = fail
"""


@pytest.mark.parametrize("kind", [b"T", b"E"])
def test_a_server_that_cannot_send_lives_on(
    kind: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"failing_sends_{kind.decode()}"
    (tmp_path / f"{name}.py").write_text(FAILING_SENDS.format(count=20, kind=kind))
    monkeypatch.syspath_prepend(str(tmp_path))
    before = helpers()[0]
    if kind == b"E":
        assert outcome("raise SystemExit(3)", preload=[name])[1].code is None
    else:
        with pytest.raises(ResourceExhaustedError, match="the start of a process failed"):
            outcome("pass", preload=[name])
    (server,) = helpers()[0] - before
    folder = f"/proc/{server}/fd"
    until(lambda: len(os.listdir(folder)) <= 5, "the server kept descriptors of a child")
    assert outcome("say(1); raise SystemExit(3)", preload=[name]) == (["1"], (3, ANY))
    assert server in helpers()[0]
    until(lambda: len(os.listdir(folder)) <= 5, "the server kept descriptors of a child")


ENDING_CONTROL = """
import socket
requests, receive = 0, socket.socket.recvmsg
def end(self, *args):
    global requests
    requests += 1
    return receive(self, *args) if requests < 2 else (b"", [], 0, None)
socket.socket.recvmsg = end
"""


def test_a_server_whose_control_socket_ends_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ending_control.py").write_text(ENDING_CONTROL)
    monkeypatch.syspath_prepend(str(tmp_path))
    for _ in range(3):
        assert outcome("say(1)", preload=["ending_control"])[0] == ["1"]


# -- a program that meddles -----------------------------------------------------------------------


@each_method
def test_exit_codes_that_nobody_kept(method: StartMethod) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        _, ended = outcome("raise SystemExit(3)", method=method)
        assert ended.code == (3 if method == "forkserver" else None)
    finally:
        signal.signal(signal.SIGCHLD, before)


@each_method
def test_exit_codes_that_somebody_else_took(method: StartMethod) -> None:
    with child("say('here'); raise SystemExit(3)", method=method) as (process, reader):
        line(reader)
        if method == "forkserver":
            code = 3
        else:
            while os.waitpid(-1, 0)[0] != process.pid:  # it may be a server that was killed
                pass
            code = None
        ended = process.ended(PATIENCE)
    assert ended is not None
    assert ended.code == code


def test_a_server_that_somebody_waited_for() -> None:
    outcome("pass")
    servers = helpers()[0]
    kill_servers()
    for each in servers:
        with suppress(ChildProcessError):  # it is known to have ended
            os.waitpid(each, 0)
    assert outcome("say(1)")[0] == ["1"]


def test_servers_are_killed_while_threads_start_children() -> None:
    done, succeeded = threading.Event(), threading.Event()

    def work() -> set[int | None]:
        ends = set()
        while not done.is_set():
            try:
                ends.add(outcome("say(1)")[1].code)
                succeeded.set()
            except PparallelError as error:
                ends.add(None)
                if "the fork server was killed" not in str(error):
                    raise
        return ends

    with ThreadPoolExecutor(3) as threads:
        found = [threads.submit(work) for _ in range(3)]
        try:
            for _ in range(10):
                assert succeeded.wait(PATIENCE)
                succeeded.clear()
                kill_servers()
        finally:
            done.set()
        ends = set().union(*(each.result(PATIENCE) for each in found))
    assert 0 in ends
    assert ends <= {0, None, -signal.SIGKILL}


@each_method
def test_a_full_process_table_is_named_and_the_next_start_works(
    method: StartMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    kill_servers()
    with monkeypatch.context() as full:
        full.setattr(os, "fork", refuse)
        full.setattr("subprocess._fork_exec", refuse)
        with pytest.raises(ResourceExhaustedError, match="no more processes"):
            start(TARGET, b"", method=method)
    started = start(TARGET, b"", method=method)
    end = started.ended(PATIENCE)
    started.close()
    assert end is not None
    assert end.code == 0
