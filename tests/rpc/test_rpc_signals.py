"""Signal handlers that raise, or call, at each moment of a call at which one may run.

Where they raise in zmq's own code is for its own tests.
"""

from __future__ import annotations

import gc
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from itertools import count
from types import FrameType
from typing import Any

import pytest
from interruption import Interruption
from rpc_members import add_late, launch, same

from pparallel import Runtime
from pparallel.runtime.rpc import RpcGroup, current
from pparallel.testing.patience import PATIENCE, until

SIGNAL = signal.SIGUSR1
PARTS = (
    "pparallel.interfaces",
    "pparallel.runtime.clock",
    "pparallel.runtime.delivery",
    "pparallel.runtime.links",
    "pparallel.runtime.lean_future",
    "pparallel.runtime.pending",
    "pparallel.runtime.remote_errors",
    "pparallel.runtime.polling",
    "pparallel.runtime.rpc",
    "pparallel.runtime.shm",
    "pparallel.runtime.ticker",
    "pparallel_ipc",
    "pparallel_local",
    "pparallel_serializers",
)


class Tick(Exception):  # noqa: N818 - as a time-out by a timer has it
    pass


class Box:
    """Lives in another member."""

    def put(self, value: int) -> int:
        return value


def same_late(value: Any) -> Any:
    """Return what is given when its caller waits for it."""
    add_late(0, 0)
    return value


def values_kept() -> int:
    return len(current.endpoint().refs)


def _sync(group: RpcGroup) -> object:
    return group.rpc_sync(1, same, args=(1,))


def _large(group: RpcGroup) -> object:
    return len(group.rpc_sync(1, same, args=(["1" * 100_000],))[0]) // 100_000


def _async(group: RpcGroup) -> object:
    return group.rpc_async(1, same_late, args=(1,)).wait()


def _several(group: RpcGroup) -> object:
    futures = [group.rpc_async(1, same, args=(1,)) for _ in range(3)]
    return min(each.result() for each in futures)


def _raising(group: RpcGroup) -> object:
    with pytest.raises(ZeroDivisionError):
        group.rpc_sync(1, divmod, args=(1, 0))
    return 1


def _remote(group: RpcGroup) -> object:
    return group.remote(1, same, args=(1,)).to_here()


def _method(group: RpcGroup) -> object:
    box = group.remote(1, Box)
    while not box.confirmed_by_owner():
        threading.Event().wait(0.0001)
    return box.rpc_async().put(1).wait()


OPERATIONS = [_sync, _large, _async, _several, _raising, _remote, _method]


def _kept(group: RpcGroup) -> int:
    gc.collect()  # of a frame and the exception that it has caught, either keeps the other
    kept: int = group.rpc_sync(1, values_kept)
    return kept


@contextmanager
def main_thread_calls(backend: str) -> Iterator[RpcGroup]:
    """Have the calling thread, in which signals are handled, call for a member."""
    groups: Future[RpcGroup] = Future()
    is_done = threading.Event()

    def program(rt: Runtime) -> None:
        group = rt.group()
        group.barrier(PATIENCE)
        if rt.rank == 0:
            groups.set_result(group)
        is_done.wait()

    thread = threading.Thread(target=launch, args=(program, 2, backend), kwargs={"timeout": 10.0})
    thread.start()
    try:
        yield groups.result(PATIENCE)
    finally:
        is_done.set()
        thread.join()


@contextmanager
def handled(error: type[BaseException]) -> Iterator[None]:
    """Have the handler of the signal raise *error*."""

    def handler(number: int, frame: FrameType | None) -> None:
        raise error("of the handler")

    before = signal.signal(SIGNAL, handler)
    try:
        yield
    finally:
        signal.signal(SIGNAL, before)


def _modules(parts: tuple[str, ...]) -> list[Any]:
    return [
        module
        for name, module in list(sys.modules.items())
        if name.startswith(parts) and getattr(module, "__file__", None)
    ]


def interrupted(operation: Callable[[RpcGroup], object], group: RpcGroup, number: int) -> bool:
    """Run an operation; return whether it took *number* moments, and was interrupted then."""
    at = Interruption(number, partial(signal.raise_signal, SIGNAL), *_modules(PARTS))
    where = f"{operation.__name__} at {number}"
    try:
        with at.armed():
            assert operation(group) == 1, where
    except BaseException as error:
        if error.args != ("of the handler",):
            raise AssertionError(f"what came out of {where} is not the handler's") from error
        return True
    assert at.left > 0, f"what the handler raised did not come out of {where}"
    return False


@pytest.mark.parametrize("backend", ["local", "ipc", "zmq"])
@pytest.mark.parametrize("error", [Tick, TimeoutError, KeyboardInterrupt])
def test_what_a_signals_handler_raises_comes_out_of_a_call_and_no_other_is_lost(
    error: type[BaseException], backend: str, scale: Callable[[int], int]
) -> None:
    with handled(error), main_thread_calls(backend) as group:
        for operation in OPERATIONS:
            assert operation(group) == 1
            for number in count(1, 10 // scale(10)):
                if not interrupted(operation, group, number):
                    break
                assert group.rpc_async(1, same, args=(number,), timeout=5).wait() == number
                assert group.rpc_sync(1, same, args=(number,), timeout=5) == number
            assert number > 10
        if backend == "local":  # what it interrupts there may be the other member
            return
        window = group._endpoint._window
        until(lambda: not any(window._used.values()), "room of a call was not given back")
        until(lambda: _kept(group) == 0, "a value is kept for nobody")


@pytest.mark.parametrize("backend", ["ipc", "zmq"])
@pytest.mark.parametrize("inner", [_sync, _async, _remote])
def test_a_signals_handler_calls_and_waits_in_the_midst_of_a_call(
    inner: Callable[[RpcGroup], object], backend: str, scale: Callable[[int], int]
) -> None:
    refused = "cannot wait for an answer before it goes on"
    with main_thread_calls(backend) as group:
        for outer in (_sync, _several, _large, _async, _remote):
            for number in count(1, 12 // scale(4)):
                found: list[object] = []

                def call(found: list[object] = found) -> None:
                    try:
                        found.append(inner(group))
                    except RuntimeError as error:
                        found.append(str(error))

                at = Interruption(number, call, *_modules((*PARTS, "pparallel_zmq")))
                with at.armed():
                    assert outer(group) == 1
                if at.left > 0:
                    break
                (result,) = found
                # zmq sends the parts of one message after those of another.
                assert result == 1 or (backend == "zmq" and refused in str(result))
            assert number > 10
