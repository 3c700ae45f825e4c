"""Calls of groups that are interrupted, as by Ctrl-C, or come too late: nothing is left of them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest
from rpc_members import between, first_of_two, launch
from typing_extensions import override

from pparallel import Runtime
from pparallel.errors import CallTimeoutError
from pparallel.runtime.rpc import RpcGroup, context
from pparallel.testing.patience import PATIENCE

each_error = pytest.mark.parametrize(
    "error",
    [KeyboardInterrupt(), CallTimeoutError("a request", 1.0)],
    ids=lambda error: type(error).__name__,
)


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


@each_error
def test_a_name_whose_claim_was_interrupted_is_free(error: BaseException) -> None:
    with first_of_two() as group:
        for claim, is_claimed in (
            (group.pair, group.is_paired),
            (group.register, group.is_registered),
        ):
            with interrupted("directory.claim", error):
                claim("name", len)
            assert not is_claimed("name")
            claim("name", len)
            assert is_claimed("name")


@each_error
def test_a_group_whose_entry_or_end_was_interrupted_is_entered_or_left_again(
    error: BaseException,
) -> None:
    def program(rt: Runtime, _: RpcGroup) -> None:
        with interrupted("group.enter", error):
            rt.group("alone", [rt.name])
        group = rt.group("alone", [rt.name])
        group.barrier(PATIENCE)
        with interrupted("group.leave", error):
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
    with first_of_two() as group, pytest.raises(TimeoutError):
        group.wait_for(InterruptedFuture(), "the start of another")
