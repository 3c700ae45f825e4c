"""Methods of remote values as callbacks, and the calls and results that are refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rpc_members import first_of_two

import pparallel
from pparallel import Runtime
from pparallel.compat import torch_multiprocessing
from pparallel.errors import RemoteError, SerializationError
from pparallel.runtime.rpc.refs import RemoteRef
from pparallel.testing.patience import PATIENCE
from pparallel_process import ProcessLauncherConfig

each_backend = pytest.mark.parametrize("backend", ["local", "ipc"])


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, line: str, *, times: int = 1) -> int:
        self.lines += [line] * times
        return len(self.lines)


def call_back(callback: Callable[..., Any]) -> Any:
    return callback("from there", times=2)


def call_back_later(callback: Callable[..., Any]) -> Any:
    return callback("later").result(PATIENCE)


def call_method(proxy: Any) -> Any:
    return proxy.add("by the proxy")


def call_remotely(callback: Callable[..., Any]) -> Any:
    return callback("to a reference").to_here(PATIENCE)


def numbers() -> Iterator[int]:
    yield 1


def raise_stop_iteration() -> None:
    next(iter([]))


class Holder:
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def method(self) -> None:
        """Be bound to it."""


@each_backend
def test_a_method_of_a_remote_value_is_a_callback(backend: str) -> None:
    with first_of_two(backend) as group:
        ref: RemoteRef[Log] = group.remote(0, Log)
        assert group.rpc_sync(1, call_back, args=(ref.rpc_sync(PATIENCE).add,)) == 2
        assert group.rpc_sync(1, call_back_later, args=(ref.rpc_async(PATIENCE).add,)) == 3
        assert group.rpc_sync(1, call_method, args=(ref.rpc_sync(PATIENCE),)) == 4
        assert group.rpc_sync(1, call_remotely, args=(ref.remote(PATIENCE).add,)) == 5
        assert group.rpc_sync(1, ref.rpc_sync(PATIENCE).add, args=("as the function",)) == 6
        assert ref.local_value().lines[:3] == ["from there", "from there", "later"]


@each_backend
def test_a_function_that_raises_stop_iteration_ends_its_call(backend: str) -> None:
    with first_of_two(backend) as group:

        async def awaiting() -> None:
            await asyncio.wrap_future(group.rpc_async(1, raise_stop_iteration))

        ends: list[Callable[[], object]] = [
            lambda: group.rpc_sync(1, raise_stop_iteration, timeout=PATIENCE),
            lambda: group.rpc_async(1, raise_stop_iteration).result(PATIENCE),
            lambda: asyncio.run(asyncio.wait_for(awaiting(), PATIENCE)),
            lambda: group.remote(1, raise_stop_iteration).to_here(PATIENCE),
            lambda: group.remote(0, raise_stop_iteration).local_value(),
        ]
        for end in ends:
            with pytest.raises(RuntimeError, match="task raised StopIteration") as caught:
                end()
            assert isinstance(caught.value.__cause__, (StopIteration, RemoteError))


@each_backend
def test_a_refusal_begins_with_the_callers_name_of_the_object(backend: str) -> None:
    lock = threading.Lock()

    def closing_over() -> object:
        return lock

    refused: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((print, 1, Holder()), {}, "args[1].lock (threading.Lock) cannot"),
        ((print, Holder().method), {}, "args[0].__self__.lock (threading.Lock) cannot"),
        ((print,), {"x": [lock]}, "kwargs['x'][0] (threading.Lock) cannot"),
        ((print, numbers()), {}, "args[0] (generator) cannot"),
    ]
    with first_of_two(backend) as group:
        for call in (group.rpc_sync, group.rpc_async, group.remote):
            for (function, *args), kwargs, message in refused:
                with pytest.raises(SerializationError) as caught:
                    call(1, function, args=args, kwargs=kwargs)
                assert str(caught.value).startswith(message)
                assert "register" not in str(caught.value)
            with pytest.raises(SerializationError) as caught:
                call(1, closing_over)
            assert " closing over lock (threading.Lock) cannot" in str(caught.value)
            assert str(caught.value).startswith("test_a_refusal")
            assert "register it where it is to run" in str(caught.value)


@each_backend
def test_a_generator_is_no_result(backend: str) -> None:
    with first_of_two(backend) as group:
        calls: list[Callable[[], object]] = [
            lambda: group.rpc_sync(1, numbers),
            lambda: group.rpc_async(1, numbers).result(PATIENCE),
            lambda: group.remote(1, numbers).to_here(PATIENCE),
        ]
        for call in calls:
            with pytest.raises(SerializationError) as caught:
                call()
            assert str(caught.value).startswith("result (generator) cannot be serialised: ")
            assert "return a list, or use a pool's imap" in str(caught.value)


def target(rt: Runtime, *args: object, **kwargs: object) -> None:
    """Run nowhere."""


def launch(*args: object, **kwargs: object) -> None:
    config = {"members": 2, "launcher": {"backend": "process"}, "transport": {"backend": "ipc"}}
    pparallel.launch(config, target, list(args), kwargs)


def spawn(*args: object) -> None:
    with pparallel.build(ProcessLauncherConfig()) as launcher:
        launcher.spawn(target, args, nprocs=1)


@pytest.mark.parametrize(
    ("start", "refused"),
    [
        (lambda: launch(1, threading.Lock()), "args[1] (threading.Lock)"),
        (lambda: launch(1, threading.Event()), "args[1] (threading.Event)"),
        (lambda: launch(x=numbers()), "kwargs['x'] (generator)"),
        (lambda: spawn(threading.Lock()), "args[0] (threading.Lock)"),
        (lambda: torch_multiprocessing.spawn(target, (1, numbers())), "args[1] (generator)"),
    ],
)
def test_what_starts_processes_refuses_an_argument_by_its_name(
    start: Callable[[], object], refused: str
) -> None:
    with pytest.raises(SerializationError) as caught:
        start()
    assert str(caught.value).startswith(f"{refused} cannot be serialised: ")
