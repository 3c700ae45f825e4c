"""Calls of groups that are interrupted, as by Ctrl-C, or come too late: nothing is left of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
from rpc_members import between, launch, wait_interrupted

import pparallel
from pparallel import Runtime
from pparallel.errors import CallTimeoutError
from pparallel.runtime.rpc import RpcGroup, current
from pparallel.runtime.rpc.future import RpcFuture, Way
from pparallel.runtime.user_code import has_entered, passing_on, run
from pparallel.testing.patience import PATIENCE, until

INTERRUPTS = [KeyboardInterrupt(), CallTimeoutError("a request", 1.0)]


@contextmanager
def interrupted(key: str, error: BaseException) -> Iterator[None]:
    """Have the answer of the service *key* not reach whoever asks in this member."""
    endpoint: Any = current.endpoint()
    ask = endpoint.ask

    def fail(to: str, what: str, *args: Any, **options: Any) -> Any:
        answer = ask(to, what, *args, **options)
        if what == key:
            raise error
        return answer

    endpoint.ask = fail
    try:
        with pytest.raises(type(error)):
            yield
    finally:
        del endpoint.ask


def _pair(group: RpcGroup) -> None:
    group.pair("name", [1])


def _register(group: RpcGroup) -> None:
    group.register("name", len)


@pytest.mark.parametrize("error", INTERRUPTS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("claim", [_pair, _register])
def test_a_name_whose_claim_was_interrupted_is_free(
    claim: Callable[[RpcGroup], None], error: BaseException
) -> None:
    def program(rt: Runtime, group: RpcGroup) -> None:
        with interrupted("directory.claim", error):
            claim(group)
        assert not group.is_paired("name")
        assert not group.is_registered("name")
        claim(group)
        assert group.is_paired("name") or group.is_registered("name")

    launch(between(program))


@pytest.mark.parametrize("error", INTERRUPTS, ids=lambda error: type(error).__name__)
def test_a_group_whose_entry_was_interrupted_is_entered_again(error: BaseException) -> None:
    def program(rt: Runtime, _: RpcGroup) -> None:
        with interrupted("group.enter", error):
            rt.group("alone", [rt.name])
        rt.group("alone", [rt.name]).barrier(PATIENCE)

    launch(between(program))


def test_a_group_whose_end_was_interrupted_is_left_again() -> None:
    def program(rt: Runtime, _: RpcGroup) -> None:
        group = rt.group("alone", [rt.name])
        with interrupted("group.leave", KeyboardInterrupt()):
            group.destroy()
        group.destroy()
        rt.group("alone", [rt.name]).destroy()

    launch(between(program))


def test_a_result_whose_reading_was_interrupted_is_read_again() -> None:
    errors: list[BaseException] = [KeyboardInterrupt()]

    def decode(_: str, frames: Any) -> Any:
        if errors:
            raise errors.pop()
        return frames

    future: RpcFuture[Any] = RpcFuture(Way(decode, _nothing, lambda error: error), "a")
    future.set_result("reply")
    with pytest.raises(KeyboardInterrupt):
        future.result(PATIENCE)
    assert future.result(PATIENCE) == "reply"


@pytest.mark.parametrize("backend", ["ipc", "zmq"])
def test_no_call_is_lost_whatever_a_signal_handler_interrupts(
    backend: str, scale: Callable[[int], int]
) -> None:
    raw = {
        "members": 2,
        "launcher": {"backend": "process"},
        "transport": {"backend": backend, "timeout": PATIENCE},
    }
    interrupts, wrong = pparallel.launch(raw, wait_interrupted, [scale(8) / 2])[0]
    assert interrupts > 10
    assert wrong == 0


def test_a_future_keeps_its_time_out_where_the_transport_waits_too() -> None:
    def waiting(_: str, __: object, timeout: float | None) -> AbstractContextManager[object]:
        time.sleep(timeout or 0.0)
        return nullcontext()

    future: RpcFuture[Any] = RpcFuture(Way(lambda _, f: f, waiting, lambda error: error), "a")
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        future.result(1.0)
    assert time.monotonic() - began < 1.7


def _nothing(*_: object) -> AbstractContextManager[object]:
    return nullcontext()


def test_a_method_has_not_begun_while_its_value_is_looked_up() -> None:
    steps = [threading.Event() for _ in range(4)]

    def method() -> None:
        steps[2].set()
        steps[3].wait(PATIENCE)

    @passing_on
    def passes() -> None:
        steps[0].set()
        steps[1].wait(PATIENCE)
        run(method, ())

    thread = threading.Thread(target=run, args=(passes, ()))
    thread.start()
    assert thread.ident is not None
    assert steps[0].wait(PATIENCE)
    assert not has_entered(thread.ident)
    steps[1].set()
    assert steps[2].wait(PATIENCE)
    until(lambda: has_entered(thread.ident or 0), "it has not begun")
    steps[3].set()
    thread.join()
