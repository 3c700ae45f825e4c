"""Calls of groups that are interrupted, as by Ctrl-C, or come too late: nothing is left of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest
from rpc_members import between, launch
from typing_extensions import override

from pparallel import Runtime
from pparallel.errors import CallTimeoutError
from pparallel.runtime.rpc import RpcGroup, context
from pparallel.testing.patience import PATIENCE

INTERRUPTS = [KeyboardInterrupt(), CallTimeoutError("a request", 1.0)]


@contextmanager
def interrupted(key: str, error: BaseException) -> Iterator[None]:
    """Have the answer of the service *key* not reach whoever asks in this member."""
    endpoint: Any = context.endpoint()
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


class InterruptedFuture(Future[None]):
    """One while whose result is waited for a signal's handler raises."""

    @override
    def result(self, timeout: float | None = None) -> None:
        raise TimeoutError


def test_a_handlers_time_out_leaves_a_wait_for_the_programs_of_others() -> None:
    def program(_: Runtime, group: RpcGroup) -> None:
        with pytest.raises(TimeoutError):
            group.wait_for(InterruptedFuture(), "the start of another")

    launch(between(program))
