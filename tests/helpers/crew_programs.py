"""What members do in the tests of faults: functions of a runtime, and what they call."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from pparallel.builder import Runtime
from pparallel.errors import PparallelError
from pparallel.runtime.rpc import RpcFuture, context
from pparallel.testing.patience import PATIENCE, until


def add(a: int, b: int) -> int:
    """Return the sum."""
    return a + b


def wait_at(file: Path) -> str:
    """Note that somebody waits, and wait until another file lets it go on."""
    file.touch()
    until(file.with_name(f"{file.name} over").exists, f"nobody let {file.name} go on")
    return context.endpoint().name


async def wait_in_the_loop(file: Path) -> None:
    """Note that somebody waits, and when the wait is cancelled."""
    file.touch()
    try:
        await asyncio.Event().wait()
    finally:
        file.with_name(f"{file.name} ended").touch()


def count(file: Path) -> int:
    """Leave one more byte in *file*, and return how many there are."""
    with file.open("ab", buffering=0) as opened:
        opened.write(b".")
        return opened.tell()


def pid() -> int:
    """Return the number of the process that this member lives in."""
    return os.getpid()


def hold_the_gil(seconds: float) -> None:
    """Let no other thread of this process run Python."""
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


def stop_oneself() -> None:
    """Stop this process, as Ctrl-Z does."""
    os.kill(os.getpid(), signal.SIGSTOP)


def wait_for_the_end(rt: Runtime) -> str:
    """Wait until the job ends, whatever the reason."""
    until(lambda: rt.stopping, "the job did not end")
    return "stopping"


def serve(rt: Runtime, file: Path, *gone: str) -> list[str]:
    """Do nothing but answer until *file* is there, and *gone* are not; return who is then."""
    until(lambda: file.exists() or rt.stopping, "nobody said that it is over")
    until(lambda: not {*gone} & {*rt.transport.members()}, f"not all of {gone} were given up")
    return rt.transport.members()


def call_to_the_end(rt: Runtime, to: str, file: Path) -> tuple[str, float, list[str]]:
    """Call *to*, which does not answer; return what the call raised, and how late that came.

    The time counts from when the file ``killed`` beside *file* was made.
    """
    error = raised_by(lambda: rt.group().rpc_sync(to, wait_at, args=(file,)))
    late = _since(file.with_name("killed"))
    if rt.stopping:
        return error, late, []
    until(lambda: to not in rt.transport.members(), f"{to} is still a member")
    return error, late, rt.transport.members()


def call_a_coroutine(rt: Runtime, to: str, file: Path, at_once: bool) -> None:
    """Wait for a coroutine of *to*, in this thread's own connection or for a future of it."""
    if at_once:
        rt.group().rpc_sync(to, wait_in_the_loop, (file,), timeout=None)
    rt.group().rpc_async(to, wait_in_the_loop, (file,), timeout=None).wait()


def call_without_a_pause(rt: Runtime, to: str, file: Path) -> tuple[int, list[str], list[int]]:
    """Call *to* with 64 calls under way until it is gone.

    Returns:
        How many results there were before the first error, the errors' texts, and which calls
        have a result that is not their own.
    """
    group, calls = rt.group(), list[RpcFuture[Any]]()

    def has_failed() -> bool:
        if len(calls) > 1000:
            file.touch()
        for _ in range(64):
            calls.append(group.rpc_async(to, add, args=(len(calls), 1)))
        return calls[-64].exception(PATIENCE) is not None

    with suppress(PparallelError):  # it cannot even be asked any more
        until(has_failed, "the other goes on")
    errors = [each.exception(PATIENCE) for each in calls]
    results = [n for n, error in enumerate(errors) if error is None]
    wrong = [n for n in results if calls[n].result() != n + 1]
    return len(results), sorted({str(each) for each in errors if each}), wrong


def call_many_ways(rt: Runtime, to: str, file: Path) -> list[str]:
    """Wait for *to* in every way, a barrier of all among them; return what they raise."""
    group = rt.group()
    found: list[str] = []
    calls = [
        lambda: group.rpc_sync(to, wait_at, args=(file,)),
        lambda: group.rpc_async(to, wait_at, args=(file,)).wait(),
        lambda: group.remote(to, wait_at, args=(file,)).to_here(),
        lambda: group.barrier(PATIENCE),
    ]
    threads = [threading.Thread(target=lambda f=f: found.append(raised_by(f))) for f in calls]
    for each in threads:
        each.start()
    for each in threads:
        each.join(PATIENCE)
    assert not any(each.is_alive() for each in threads)
    return found


def calls_after(rt: Runtime, to: str, file: Path) -> tuple[int, list[str]]:
    """Wait for *file*, then call *to*; return its answer, and who is there."""
    until(file.exists, "the test goes on")
    return rt.group().rpc_sync(to, add, args=(1, 2)), rt.transport.members()


def calls_before_and_after(rt: Runtime, to: str, file: Path) -> tuple[int, list[str]]:
    """Call *to*, note that, wait for *file* and call again; return the answer, and who is there."""
    rt.group().rpc_sync(to, add, args=(1, 1))
    file.with_name(f"{rt.name} has called").touch()
    return calls_after(rt, to, file)


def have_it_hold_the_gil(rt: Runtime, to: str, seconds: float) -> tuple[float, list[str]]:
    """Have *to* hold its GIL; return how long that took, and who is there then."""
    began = time.monotonic()
    rt.group().rpc_sync(to, hold_the_gil, args=(seconds,))
    return time.monotonic() - began, rt.transport.members()


def host_memory(rt: Runtime, other: str, holds: Path) -> tuple[int, int]:
    """Host a server; return how many blocks others hold before and after the end of *other*."""
    server, arena = rt.ordered_server, rt.group().arena(rt.name)
    assert arena is not None
    lost = threading.Event()
    rt.group().when_lost(lambda name, _: lost.set() if name == other else None)
    assert server.push("k", np.ones(1 << 20, np.uint8), 1, None)
    until(holds.exists, f"{other} holds nothing")
    assert server.delete("k")
    arena.trim()
    before = arena.usage().blocks
    holds.with_name("looked").touch()
    until(lost.is_set, f"{other} was not lost")

    def trimmed() -> bool:
        arena.trim()
        return arena.usage().blocks == 0

    until(trimmed, "what the dead held is held still")
    return before, arena.usage().blocks


def borrow_and_wait(rt: Runtime, file: Path) -> None:
    """Be about to push for ever."""
    from pparallel_servers.flat import Flat

    def write(form: Flat, memory: memoryview) -> None:
        file.touch()
        threading.Event().wait()

    Flat.write = write  # type: ignore[assignment, method-assign]
    rt.ordered_server.push("mine", b"y" * (1 << 20), 1, None)


def read_and_wait(rt: Runtime, file: Path) -> None:
    """Read a value for ever."""
    from pparallel_servers.flat import Flattener

    def fill(*_: object) -> None:
        file.touch()
        threading.Event().wait()

    Flattener.fill = fill  # type: ignore[method-assign, assignment]
    assert rt.ordered_server.wait("k", timeout=PATIENCE) is not None
    rt.ordered_server.pull("k", into=np.empty(1 << 20, np.uint8))


def raised_by(call: Any) -> str:
    """Return type and message of what *call* raises; empty if nothing."""
    try:
        call()
    except PparallelError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _since(file: Path) -> float:
    until(file.exists, f"{file.name} is there")
    return time.time() - file.stat().st_mtime
