"""How another process is called, whoever carries the call: what a turn of it consists of."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol

from benchmarks.harness import Turn, timed
from benchmarks.tasks import echo, no_op

REFERENCE, PAIRED, REGISTERED = METHODS = (
    "method of a reference",
    "method of a paired object",
    "registered method",
)
"""How an object is named whose method is called."""

IN_FLIGHT = 64  #: how many calls are under way at a time, where they do not wait for one another

Function = Callable[[Any], Any]


class Waiting(Protocol):
    """What a call returns that was not waited for."""

    def wait(self) -> Any:
        """Return the result, when it is there."""


class Caller(NamedTuple):
    """What calls functions of `benchmarks.tasks` in one other process.

    Attributes:
        call: calls a function with one argument, and returns what it returned.
        many: does so for each of many arguments, `IN_FLIGHT` at a time; None: it cannot.
        arrays: whether it is given arrays where others are given tensors, for it knows no better.
        methods: by each of `METHODS`, what calls `no_op` of a `Station` in the other process.
    """

    call: Callable[[Function, Any], Any]
    many: Callable[[Function, Iterable[Any]], list[Any]] | None = None
    arrays: bool = False
    methods: Mapping[str, Callable[[int], int]] = {}


Recipe = Callable[[Caller], Turn]
"""Makes a caller's turn; it can be pickled, for some callers live in another process."""


def in_flight(submit: Callable[[Any], Waiting], arguments: Iterable[Any]) -> list[Any]:
    """Return the results of calls, `IN_FLIGHT` of which are under way at a time."""
    results: list[Any] = []
    waiting: deque[Waiting] = deque()
    for each in arguments:
        if len(waiting) == IN_FLIGHT:
            results.append(waiting.popleft().wait())
        waiting.append(submit(each))
    return results + [each.wait() for each in waiting]


def one_by_one(calls: int, caller: Caller, function: Function = no_op) -> Turn:
    """Call a function with one number after the other."""
    return timed(
        partial(caller.call, function),
        int,
        lambda number, result: bool(function(number) == result),
        calls=calls,
    )


def method(kind: str, calls: int, caller: Caller) -> Turn:
    """Call a method of an object with one number after the other."""
    return timed(
        caller.methods[kind], int, lambda number, result: bool(number == result), calls=calls
    )


def many_at_once(calls: int, caller: Caller) -> Turn:
    """Have many calls under way."""
    if caller.many is None:
        raise ValueError("this caller waits for each of its calls")
    return timed(
        partial(caller.many, no_op),
        lambda number: range(number * calls, (number + 1) * calls),
        lambda numbers, results: list(numbers) == results,
        tasks=calls,
    )


def tensors(megabytes: int, calls: int, caller: Caller) -> Turn:
    """Send a tensor there and back; a call ends when the last element has been read."""
    import torch

    base = torch.arange(megabytes << 18, dtype=torch.float32)

    def prepare(number: int) -> Any:
        tensor = base + number
        return tensor.numpy() if caller.arrays else tensor

    def run(argument: Any) -> Any:
        result = caller.call(echo, argument)
        result[-1].item()
        return result

    return timed(run, prepare, lambda sent, got: bool((sent == got).all()), calls=calls)
