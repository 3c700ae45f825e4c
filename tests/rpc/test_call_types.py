"""What a type checker makes of calls; the members run them, too."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock
from typing import TYPE_CHECKING, Any, assert_type

import pparallel
from pparallel.runtime.future import TorchFuture
from pparallel.runtime.rpc import RemoteRef, RpcFuture
from pparallel.testing.patience import PATIENCE

if TYPE_CHECKING:
    from pparallel.builder import Runtime


def text(number: int) -> str:
    return str(number)


async def later(number: int) -> str:
    return str(number)


def future(number: int) -> Future[str]:
    found: Future[str] = Future()
    found.set_result(str(number))
    return found


class Value:
    def __init__(self, number: int) -> None:
        self.number = number


def check(rt: Runtime) -> None:
    group = rt.group()
    if rt.rank == 0:
        assert assert_type(group.rpc_sync(1, text, (1,)), str) == "1"
        assert assert_type(group.rpc_sync(1, later, (1,), timeout=PATIENCE), str) == "1"
        assert assert_type(group.rpc_sync(1, future, (1,), {}, idempotent=True), str) == "1"
        made = assert_type(group.rpc_async(1, text, (1,)), pparallel.RpcFuture[str])
        assert assert_type(made.wait(), str) == "1"
        assert_type(group.rpc_async(1, later, (1,)), RpcFuture[str]).wait()
        assert_type(group.rpc_async(1, future, (1,)), RpcFuture[str]).wait()
        length = assert_type(made.then(lambda done: len(done.value())), TorchFuture[int])
        assert assert_type(pparallel.wait_all([length]), list[int]) == [1]
        ref = assert_type(group.remote(1, Value, (1,)), RemoteRef[Value])
        assert assert_type(ref.to_here(), Value).number == 1
        assert_type(group.remote(1, later, (1,)), RemoteRef[str]).to_here()
        assert_type(group.remote(1, future, (1,)), RemoteRef[str]).to_here()
        with group.remote(1, Lock).rpc_sync() as entered:
            assert assert_type(entered, Any) is True
        assert len(group.remote(1, dict, ()).rpc_sync()) == 0
        assert list(group.remote(1, range, (2,)).rpc_sync()) == [0, 1]
        function: Callable[..., Any] = text
        assert assert_type(group.rpc_sync(1, function, (1,)), Any) == "1"
    group.barrier(PATIENCE)


def test_calls_have_the_types_of_their_functions() -> None:
    """Mypy checks the types, with all other files."""
    pparallel.launch({"members": 2, "reducer": {"backend": "local"}}, check)
