"""A history checker: were operations on an ordered server linearizable?

Record what members do with a :class:`Recorder`, put the operations of all together, and
:func:`check` them: for each key there must be one order of the operations, in which each lies
between its call and its return, that a server doing one thing at a time could have produced.

Source: the search of Wing and Gong (1993) with the memory of Lowe (2017), as in porcupine.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from pparallel.interfaces.ordered_server import OrderedServer

#: The versions and values held of one key, from the oldest to the newest.
State = tuple[tuple[Any, Any], ...]


class Unknown:
    """The result of an operation that failed: it may have taken effect, or may yet."""

    @override
    def __repr__(self) -> str:
        return "unknown"


@dataclass(frozen=True, slots=True)
class Operation:
    """One call, as its caller saw it.

    Attributes:
        key: whose value.
        name: ``push``, ``pull``, ``wait``, ``versions`` or ``delete``.
        arguments: what followed the key.
        result: what it returned; :class:`Unknown` if it raised.
        start: when it was called, by :func:`time.monotonic`, which the members of one machine
            share.
        end: when it returned.
        member: who called.
    """

    key: Hashable
    name: str
    arguments: tuple[Any, ...]
    result: Any
    start: float
    end: float
    member: str = ""

    @override
    def __str__(self) -> str:
        arguments = ", ".join(map(repr, self.arguments))
        when = f"{self.start * 1e3:.3f} to {self.end * 1e3:.3f} ms"
        return f"{self.member}: {self.name}({arguments}) -> {self.result!r}, {when}"


class Recorder:
    """Does what an ordered server does, and writes it down; one for each thread."""

    def __init__(self, server: OrderedServer, member: str = "") -> None:
        self._server = server
        self._member = member
        self.operations: list[Operation] = []

    def push(self, key: Hashable, value: Any, version: Hashable, prev_version: Any) -> bool:
        """Push; *value* is hashable."""
        arguments = (value, version, prev_version)
        return bool(self._record(key, "push", arguments, self._server.push))

    def pull(self, key: Hashable, version: Hashable | None = None) -> Any:
        """Pull."""
        return self._record(key, "pull", (version,), self._server.pull)

    def wait(self, key: Hashable, version: Hashable | None, timeout: float) -> Any:
        """Wait."""
        return self._record(key, "wait", (version, timeout), self._server.wait)

    def versions(self, key: Hashable) -> Any:
        """Ask for the versions."""
        return self._record(key, "versions", (), self._server.versions)

    def delete(self, key: Hashable) -> bool:
        """Delete."""
        return bool(self._record(key, "delete", (), self._server.delete))

    def _record(
        self, key: Hashable, name: str, arguments: tuple[Any, ...], call: Callable[..., Any]
    ) -> Any:
        result: Any = Unknown()
        start = time.monotonic()
        try:
            result = call(key, *arguments)
        finally:
            end = time.monotonic()
            self.operations.append(
                Operation(key, name, arguments, result, start, end, self._member)
            )
        return result


def check(operations: Iterable[Operation], depth: int) -> None:
    """Refuse a history that no server could have produced that does one thing at a time.

    Args:
        operations: those of all members, in any order.
        depth: how many versions the server keeps of a key.

    Raises:
        AssertionError: with the longest run of operations that can be explained, and those of
            which one should have come next and none could.
    """
    by_key: defaultdict[Hashable, list[Operation]] = defaultdict(list)
    for each in operations:
        by_key[each.key].append(each)
    for key, history in by_key.items():
        _check_key(key, sorted(history, key=lambda each: each.start), depth)


def _check_key(key: Hashable, history: list[Operation], depth: int) -> None:
    known = [not isinstance(each.result, Unknown) for each in history]
    must = sum(1 << index for index, is_known in enumerate(known) if is_known)
    tried: set[tuple[int, State]] = set()
    path: list[tuple[int, State, list[int]]] = [(0, (), _next(history, known, 0))]
    best: tuple[int, State] = (0, ())
    while path:
        done, state, candidates = path[-1]
        if done & must == must:
            return
        if not candidates:
            path.pop()
            continue
        index = candidates.pop(0)
        fits, after = _apply(state, history[index], depth)
        reached = (done | 1 << index, after)
        if fits and reached not in tried:
            tried.add(reached)
            path.append((*reached, _next(history, known, reached[0])))
            if reached[0].bit_count() > best[0].bit_count():
                best = reached
    _explain(key, history, known, *best)


def _next(history: list[Operation], known: list[bool], done: int) -> list[int]:
    """Return which operations may come next: those that began before any other had to be over."""
    ends = (each.end for n, each in enumerate(history) if known[n] and not done >> n & 1)
    first_end = min(ends, default=float("inf"))
    return [
        index
        for index, each in enumerate(history)
        if not done >> index & 1 and each.start <= first_end
    ]


def _explain(
    key: Hashable, history: list[Operation], known: list[bool], done: int, state: State
) -> None:
    explained = "".join(f"\n  {each}" for n, each in enumerate(history) if done >> n & 1)
    stuck = "".join(f"\n  {history[n]}" for n in _next(history, known, done))
    message = (
        f"the history of key {key!r} is not linearizable. After, in some order,{explained}\n"
        f"it holds {state!r}, and none of these can come next:{stuck}"
    )
    raise AssertionError(message)


def _apply(state: State, operation: Operation, depth: int) -> tuple[bool, State]:
    """Return whether a server in *state* could have given that result, and its state after."""
    result, after = _MODEL[operation.name](state, depth, *operation.arguments)
    if isinstance(operation.result, Unknown):
        return True, after
    if operation.name == "wait" and operation.result is None and operation.arguments[1] != 0:
        return True, state  # time passed: what was held then says nothing
    given = operation.result
    return (tuple(given) if isinstance(given, list) else given) == result, after


def _push(
    state: State, depth: int, value: Any, version: Any, prev_version: Any
) -> tuple[bool, State]:
    if state and state[-1][0] != prev_version:
        return False, state
    kept = tuple(each for each in state if each[0] != version)
    return True, (*kept, (version, value))[-depth:]


def _pull(state: State, depth: int, version: Any) -> tuple[Any, State]:
    for held, value in reversed(state):
        if version is None or held == version:
            return (value, held), state
    return None, state


def _wait(state: State, depth: int, version: Any, timeout: float) -> tuple[Any, State]:
    newest = state[-1] if state else None
    if newest is None or newest[0] == version:
        return None, state
    return (newest[1], newest[0]), state


def _versions(state: State, depth: int) -> tuple[Any, State]:
    return tuple(held for held, _ in state), state


def _delete(state: State, depth: int) -> tuple[bool, State]:
    return bool(state), ()


_MODEL: dict[str, Callable[..., tuple[Any, State]]] = {
    "push": _push,
    "pull": _pull,
    "wait": _wait,
    "versions": _versions,
    "delete": _delete,
}
