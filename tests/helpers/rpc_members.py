"""Members of tests that call one another."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pparallel
from pparallel import RpcGroup, Runtime
from pparallel.runtime.rpc import context
from pparallel.testing.patience import PATIENCE


def launch(
    target: Callable[[Runtime], Any], size: int = 2, backend: str = "local", **transport: Any
) -> list[Any]:
    """Run *target* in members that are threads."""
    raw = {
        "members": [f"m{rank}" for rank in range(size)],
        "launcher": {"backend": "thread"},
        "transport": {"backend": backend, "timeout": PATIENCE, **transport},
    }
    return pparallel.launch(raw, target)


@contextmanager
def first_of_two(backend: str = "local", **transport: Any) -> Iterator[RpcGroup]:
    """Have the calling thread act for the first of two members, whose gate opens at the end."""
    groups: Future[RpcGroup] = Future()
    is_over = threading.Event()

    def program(rt: Runtime) -> None:
        group = rt.group()
        group.barrier(PATIENCE)
        if rt.rank == 0:
            groups.set_result(group)
        is_over.wait()
        group.barrier(PATIENCE)

    Gates.opened.clear()
    with ThreadPoolExecutor(1) as threads:
        members = threads.submit(launch, program, 2, backend, **transport)
        try:
            group = groups.result(PATIENCE)
            with context.acting_for(group._endpoint):
                yield group
        finally:
            is_over.set()
            Gates.opened.set()
            members.result()


def between(program: Callable[[Runtime, Any], Any]) -> Callable[[Runtime], Any]:
    """Return what runs *program* in the first member, while the others wait."""

    def run(rt: Runtime) -> Any:
        group = rt.group()
        group.barrier(PATIENCE)
        try:
            return program(rt, group) if rt.rank == 0 else None
        finally:
            group.barrier(PATIENCE)

    return run


class Gates:
    """Events that functions of other members wait for."""

    opened = threading.Event()


def wait_at_gate() -> bool:
    return Gates.opened.wait(PATIENCE)


def add(a: int, b: int) -> int:
    return a + b


def add_late(a: int, b: int) -> int:
    time.sleep(0.05)
    return a + b


def same(value: int) -> int:
    """Return what is given."""
    return value


def wait_interrupted(rt: Runtime, seconds: float) -> tuple[int, int] | None:
    """Call and wait, interrupted at any point; return how often, and how many calls went wrong."""
    group = rt.group()
    if rt.rank == 1:
        group.barrier(PATIENCE)
        return None
    is_inside, interrupts, futures = False, 0, list[Any]()

    def interrupt(_: int, __: FrameType | None) -> None:
        if is_inside:
            raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        new = [group.rpc_async(1, same, args=(number,)) for number in range(20)]
        futures += new
        try:
            is_inside = True
            signal.setitimer(signal.ITIMER_REAL, 0.00003 + len(futures) % 50 * 0.00001)
            for each in new:
                each.result()
        except KeyboardInterrupt:
            interrupts += 1
        finally:
            is_inside = False
            signal.setitimer(signal.ITIMER_REAL, 0)
    wrong = [at for at, each in enumerate(futures) if each.result(PATIENCE) != at % 20]
    group.barrier(PATIENCE)
    return interrupts, len(wrong)
