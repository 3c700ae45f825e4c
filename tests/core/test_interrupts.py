"""Whose exception it is that was caught, and where nobody may wait."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

import pytest
from typing_extensions import override

from pparallel.runtime.interrupts import is_interrupt
from pparallel.testing.patience import PATIENCE


def plain(number: int, frame: FrameType | None) -> None:
    raise ValueError


def letting_go(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise ValueError


def with_anything(*_: object) -> None:
    raise ValueError


class Handler:
    def __call__(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        plain(0, None)

    def method(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        raise ValueError


def leaving(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)
    raise ValueError


def exiting(number: int, frame: FrameType | None) -> None:
    sys.exit(3)


@contextmanager
def handled(handler: Callable[..., Any]) -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(
    "handler",
    [
        plain,
        letting_go,
        with_anything,
        leaving,
        exiting,
        Handler(),
        Handler().method,
        partial(letting_go),
        partial(Handler().method),
    ],
)
def test_what_a_handler_raises_is_told_from_errors(handler: Callable[..., Any]) -> None:
    with handled(handler), pytest.raises((ValueError, SystemExit)) as caught:
        signal.raise_signal(signal.SIGUSR1)
    with handled(handler):
        assert is_interrupt(caught.value)


def test_other_errors_are_no_interrupts() -> None:
    def looks(frame: FrameType) -> None:
        raise ValueError

    def calls(number: int) -> None:
        looks(sys._getframe())

    with handled(plain):
        for act in (partial(calls, 3), partial(int, "x")):
            with pytest.raises(ValueError) as caught:  # noqa: PT011 - whichever it is
                act()
            assert not is_interrupt(caught.value)


def test_errors_are_there_with_the_package() -> None:
    program = "import pparallel; assert issubclass(pparallel.errors.ClosedError, Exception)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_user_object_that_calls_while_it_is_fetched_is_no_finalizer() -> None:
    from rpc_members import launch

    def program(rt: Any) -> Any:
        group = rt.group()
        Calling.group = group
        group.barrier(PATIENCE)
        found = group.remote(1, Calling).to_here(PATIENCE) if rt.rank == 0 else None
        group.barrier(PATIENCE)
        return None if found is None else found.value

    assert launch(program, backend="ipc")[0] == 3


class Calling:
    """Calls where it is pickled."""

    group: Any = None
    value = 0

    @override
    def __getstate__(self) -> dict[str, int]:
        return {"value": type(self).group.rpc_sync(0, abs, args=(-3,))}
