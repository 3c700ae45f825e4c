"""Children end with their parent, by the kernel's hand, whatever they are doing."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
from process_children import HERE, TARGET, child, each_method, line, outcome

from pparallel.runtime.processes import StartMethod, helpers
from pparallel.testing.patience import PATIENCE, until

PROMPT = 10.0  #: seconds in which children are gone once their parent is, five times as promised

#: what a child does; each says its pid first, through the pipe that all share
WAYS = {
    "python": "while True: pass",
    "sleep": "import time; time.sleep(1000)",
    "gil": "import ctypes; ctypes.PyDLL(None).sleep(1000)",
    "sum": "sum(range(10**12))",
    "regex": "import re; re.match('(a+)+$', 'a' * 64 + 'b')",
    "deaf": "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(1000)",
    "stopped": "import signal; os.kill(os.getpid(), signal.SIGSTOP)",
    "closes": "os.closerange(3, 100); import time; time.sleep(1000)",
}
SAY = "import os; say(os.getpid())\n"
PROGRAM = """
import sys
from pparallel.runtime.processes import start
started = [start({target!r}, each.encode(), [1], method={method!r}) for each in {codes!r}]
sys.stdin.read()
"""
NESTED = """
from pparallel.runtime.processes import start
inner = start({target!r}, {code!r}.encode(), [fds[-1]], method={method!r})
{then}
"""


@contextmanager
def program(method: str, codes: Iterable[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program that starts a child for each piece of code."""
    text = PROGRAM.format(target=TARGET, method=method, codes=list(codes))
    environment = {**os.environ, "PYTHONPATH": HERE}
    command = [sys.executable, "-c", text]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment) as running:
        try:
            yield running
        finally:
            running.kill()


def watched(stack: ExitStack, pid: int) -> int:
    descriptor = os.pidfd_open(pid)
    stack.callback(os.close, descriptor)
    return descriptor


def all_ended(pidfds: Iterable[int], within: float) -> bool:
    deadline = time.monotonic() + within
    for each in pidfds:
        poll = select.poll()
        poll.register(each, select.POLLIN)
        if not poll.poll(max(0, deadline - time.monotonic()) * 1000):
            return False
    return True


@each_method
def test_children_end_when_the_parent_is_killed(method: str) -> None:
    ways = dict(WAYS)
    if method != "forkserver":  # the others have nothing left that the kernel could watch
        del ways["closes"]
    with ExitStack() as stack, program(method, [SAY + each for each in ways.values()]) as running:
        assert running.stdout is not None
        pids = [int(line(running.stdout.fileno())) for _ in ways]
        pidfds = [watched(stack, each) for each in pids]
        assert not all_ended(pidfds, 0)
        running.kill()
        assert all_ended(pidfds, PROMPT)


@pytest.mark.parametrize(
    ("outer", "inner"), [("forkserver", "fork"), ("fork", "spawn"), ("spawn", "forkserver")]
)
def test_and_so_do_their_own_children(outer: str, inner: str) -> None:
    code = NESTED.format(target=TARGET, code=SAY + WAYS["deaf"], method=inner, then=WAYS["gil"])
    with ExitStack() as stack, program(outer, [SAY + code]) as running:
        assert running.stdout is not None
        pids = [int(line(running.stdout.fileno())) for _ in range(2)]
        pidfds = [watched(stack, each) for each in pids]
        running.kill()
        assert all_ended(pidfds, PROMPT)


@pytest.mark.parametrize(
    ("method", "how"), [("forkserver", signal.SIGSEGV), ("spawn", signal.SIGTERM)]
)
def test_however_the_parent_ends(method: str, how: signal.Signals) -> None:
    with ExitStack() as stack, program(method, [SAY + WAYS["deaf"]]) as running:
        assert running.stdout is not None
        pidfds = [watched(stack, int(line(running.stdout.fileno())))]
        running.send_signal(how)
        assert all_ended(pidfds, PROMPT)


@each_method
def test_a_parent_that_returns_leaves_nobody(method: str) -> None:
    with ExitStack() as stack, program(method, [SAY + WAYS["deaf"]]) as running:
        assert running.stdout is not None
        assert running.stdin is not None
        pidfds = [watched(stack, int(line(running.stdout.fileno())))]
        running.stdin.close()
        assert running.wait(PATIENCE) == 0
        assert all_ended(pidfds, PROMPT)


# -- the fork server ------------------------------------------------------------------------------


def the_server(preload: str) -> int:
    """Start a server of its own by a child that ends at once; return its pid."""
    before = helpers()[0]
    outcome("pass", preload=[preload])
    [pid] = helpers()[0] - before
    return pid


def test_children_end_with_the_server_and_the_next_start_works() -> None:
    server = the_server("colorsys")
    others = helpers()[0] - {server}
    for _ in range(3):
        with child("say('here')\n" + WAYS["gil"], preload=["colorsys"]) as (process, reader):
            assert line(reader) == "here"
            os.kill(server, signal.SIGKILL)
            # At once, while the kernel still takes the old server down.
            said, ended = outcome("say('again')", preload=["colorsys"])
            assert (said, ended.code) == (["again"], 0)
            lost = process.ended(PROMPT)
        assert lost is not None
        assert lost.code in (None, -signal.SIGKILL)
        [server] = helpers()[0] - others


def test_a_stopped_server_delays_no_end() -> None:
    server = the_server("chunk")
    with child("say('here')\n" + WAYS["deaf"], preload=["chunk"]) as (process, reader):
        line(reader)
        os.kill(server, signal.SIGSTOP)
        try:
            process.signal(signal.SIGKILL)
            ended = process.ended(PATIENCE)
            assert ended is not None
            assert ended.code is None  # the only one who knows cannot tell
        finally:
            os.kill(server, signal.SIGCONT)


def test_ctrl_c_in_the_terminal_is_the_parents_alone() -> None:
    text = """
import os, signal, sys
signal.signal(signal.SIGINT, lambda *_: None)
signal.signal(signal.SIGTERM, lambda *_: None)
from pparallel.runtime.processes import helpers, start
code = "say('here'); import os; say(os.read(fds[0], 9).decode())"
for method in ("forkserver", "spawn", "fork"):
    end, begun = os.pipe()
    reader, writer = os.pipe()
    process = start({target!r}, code.encode(), [end, writer], method=method)
    os.killpg(0, signal.SIGINT)  # while it is set up
    assert os.read(reader, 9) == b"here\\n"
    os.killpg(0, signal.SIGINT)
    os.write(begun, b"done")
    assert process.ended(20).code == 0, process.ended()
    assert os.read(reader, 9) == b"done\\n"
servers, _ = helpers()
os.killpg(0, signal.SIGTERM)
assert len(servers) == 1
assert start({target!r}, b"pass", [1]).ended(20).code == 0
assert helpers()[0] == servers
"""
    done = subprocess.run(
        [sys.executable, "-c", text.format(target=TARGET)],
        env={**os.environ, "PYTHONPATH": HERE},
        start_new_session=True,
        capture_output=True,
        text=True,
        timeout=PATIENCE * 2,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


# -- other forks ----------------------------------------------------------------------------------


@each_method
def test_a_fork_of_the_users_own_disturbs_nobody(method: StartMethod) -> None:
    outcome("pass", method=method)
    held = helpers()[0]
    end, begun = os.pipe()
    with child("say('here'); import os; os.read(fds[0], 1)", [end], method=method) as (_, reader):
        line(reader)
        pid = os.fork()
        if not pid:
            code = 1
            try:
                _, mine = outcome("raise SystemExit(4)", method=method)
                code = 0 if mine.code == 4 and not helpers()[0] & held else 2
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        os.write(begun, b"x")
        assert line(reader) == ""
    os.close(end)
    os.close(begun)


def test_the_server_notices_its_parents_end_though_a_fork_lives_on() -> None:
    text = f"""
import os, signal
from pparallel.runtime.processes import start
process = start({TARGET!r}, {SAY + WAYS["deaf"]!r}.encode(), [1])
pid = os.fork()
if pid:
    os.write(1, b"%d\\n" % pid)
signal.pause()
"""
    environment = {**os.environ, "PYTHONPATH": HERE}
    with (
        ExitStack() as stack,
        subprocess.Popen(
            [sys.executable, "-c", text], stdout=subprocess.PIPE, env=environment
        ) as running,
    ):
        assert running.stdout is not None
        pids = [int(line(running.stdout.fileno())) for _ in range(2)]
        pidfds = [watched(stack, each) for each in pids]
        running.kill()
        until(lambda: sum(all_ended([each], 0) for each in pidfds) == 1, "the child ends")
        for each in pidfds:
            if not all_ended([each], 0):
                signal.pidfd_send_signal(each, signal.SIGKILL)
        assert all_ended(pidfds, PROMPT)
