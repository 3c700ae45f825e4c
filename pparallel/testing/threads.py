"""Run a function in many threads at once."""

from __future__ import annotations

import contextvars
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from pparallel.testing.patience import PATIENCE

T = TypeVar("T")


def in_threads(
    count: int, function: Callable[[int], T], patience: float = PATIENCE + 5.0
) -> list[T]:
    """Return ``[function(0), ..., function(count - 1)]``, each run in a thread of its own.

    The threads act for the member that the calling thread acts for.

    Raises:
        AssertionError: not all had ended after *patience* seconds.
        Exception: what the first that failed raised.
    """
    results: dict[int, Any] = {}
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            results[number] = function(number)
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    context = contextvars.copy_context()
    threads = [
        threading.Thread(target=context.copy().run, args=(run, number), daemon=True)
        for number in range(count)
    ]
    for thread in threads:
        thread.start()
    end = time.monotonic() + patience
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    if errors:
        raise errors[0]
    stuck = [number for number, thread in enumerate(threads) if thread.is_alive()]
    assert not stuck, f"threads {stuck} of {count} did not end within {patience} s"
    return [results[number] for number in range(count)]


@contextmanager
def switching_often() -> Iterator[None]:
    """Let the interpreter turn to another thread after 10 us, so that they meet in more ways."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
