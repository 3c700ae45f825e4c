"""What processes of the tests of ``compat`` run; quickly imported by each."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any, NoReturn

from pparallel.testing.patience import PATIENCE

kept: list[Any] = []


# -- spawn -------------------------------------------------------------------------------------


def note(index: int, folder: Path, text: str) -> Callable[[], None]:
    (folder / str(index)).write_text(f"{text} {os.getpid()}")
    return lambda: None  # nobody wants it, and nothing can pickle a lock


def refuse(index: int, failing: int) -> None:
    if index == failing:
        raise LookupError("no such thing")


def leave(index: int, failing: int, code: object) -> None:
    if index == failing:
        sys.exit(code)  # type: ignore[arg-type]


def leave_in_c(index: int, failing: int, code: int) -> None:
    if index == failing:
        os._exit(code)


def be_killed(index: int, failing: int, number: int) -> None:
    if index == failing:
        os.kill(os.getpid(), number)
        signal.pause()


def interrupt(index: int, failing: int) -> None:
    if index == failing:
        raise KeyboardInterrupt


def fail_beside_the_deaf(index: int, last: int, there: Any) -> None:
    """Assert in one, the *last*; the others ignore SIGTERM and wait for a lock, for good."""
    if index == last:
        assert all(there.acquire(timeout=PATIENCE) for _ in range(last))
        raise AssertionError("shapes differ")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    there.release()
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def fail_beside_those_who_end_for_ever(index: int, last: int, there: Any) -> None:
    """Assert in one, the *last*; what the others do as they end never returns."""
    if index == last:
        assert all(there.acquire(timeout=PATIENCE) for _ in range(last))
        raise AssertionError("shapes differ")

    def end(*_: object) -> None:
        while True:
            threading.Event().wait(1)

    signal.signal(signal.SIGTERM, end)
    atexit.register(end)
    there.release()


def wait_for(index: int, event: Any) -> None:
    assert event.wait(PATIENCE)


# -- objects of multiprocessing ----------------------------------------------------------------


def use_all(index: int, lock: Any, queue: Any, barrier: Any, event: Any, rest: Any) -> None:
    value, array, simple, pipes = rest
    with lock:
        value.value += 1
    barrier.wait(PATIENCE)
    array[index] = value.value
    queue.put((index, os.getpid()))
    simple.put(index)
    pipes[index].send(index)
    assert event.wait(PATIENCE)


def put_in_proxy(index: int, queue: Any, names: Any) -> None:
    queue.put(index)
    names["done"] = True


def write_to_segment(index: int, segment: shared_memory.SharedMemory) -> None:
    segment.buf[index] = 7  # type: ignore[index]
    segment.close()


def put(index: int, queue: Any, thing: object) -> None:
    queue.put((index, thing))


def keep(*things: Any) -> None:
    kept[:] = things


def add_to_kept(number: int) -> int:
    lock, value = kept
    with lock:
        value.value += number
    return os.getpid()


def send_kept(text: str) -> None:
    kept[0].send(text)


# -- tensors -----------------------------------------------------------------------------------


def train(index: int, model: Any, plain: Any, steps: int) -> None:
    """Hogwild: add to a shared model's weights without a lock; others are this process's own."""
    import torch

    with torch.no_grad():
        for _ in range(steps):
            for each in model.parameters():
                each[index] += 1
        plain += 1


def add_one(tensor: Any) -> Any:
    tensor += 1
    return tensor


def open_descriptors_of(tensor: Any) -> int:
    kept.append(tensor)
    return len(os.listdir("/proc/self/fd"))


# -- pool --------------------------------------------------------------------------------------


def square(number: int, pause: float = 0.0) -> int:
    threading.Event().wait(pause)
    return number * number


def own_pid(_: object = None) -> int:
    return os.getpid()


def raise_it(error: BaseException) -> NoReturn:
    raise error


def refuse_odd(number: int) -> int:
    if number % 2:
        raise LookupError(number)
    return number


def unpicklable(_: object = None) -> object:
    return threading.Lock()


def kill_own(number: int = signal.SIGKILL) -> None:
    os.kill(os.getpid(), number)
    signal.pause()


def refuse_to_start() -> None:
    raise LookupError("no licence")


def start_a_child(queue: Any) -> int | None:
    """Start a process, and wait for it, as compilers do."""
    child = multiprocessing.get_context("fork").Process(target=queue.put, args=("from a child",))
    child.start()
    child.join(PATIENCE)
    return child.exitcode


def start_a_child_in(index: int, queue: Any) -> None:
    assert start_a_child(queue) == 0


def fill_and_die(index: int, queue: Any, count: int, nbytes: int) -> None:
    for each in range(count):
        queue.put((each, bytes(nbytes)))
    os.kill(os.getpid(), signal.SIGKILL)


def get_for_ever(index: int, queue: Any, taken: Any) -> None:
    while True:
        taken.put(queue.get())


def put_many(index: int, queue: Any, count: int) -> None:
    for each in range(count):
        queue.put((index, each))


def hold_for(seconds: float) -> float:
    threading.Event().wait(seconds)
    return seconds


def be_a_parent(_: int, pids: Any) -> None:
    import pparallel.compat.torch_multiprocessing as mp

    mp.start_processes(say_own_pid_and_wait, (pids,), start_method="fork")


def say_own_pid_and_wait(_: int, pids: Any) -> None:
    pids.put(os.getpid())
    signal.pause()
