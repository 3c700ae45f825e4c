"""An ordered server that does one thing at a time: what each operation returns and leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pparallel.testing.linearizability.operation import Operation

#: The versions and values held of one key, from the oldest to the newest.
State = tuple[tuple[Any, Any], ...]


def apply(state: State, operation: Operation, depth: int) -> tuple[bool, State]:
    """Return whether a server in *state* could have given that result, and its state after."""
    result, after = MODEL[operation.name](state, depth, *operation.arguments)
    if not operation.is_known:
        return True, after
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


#: what each operation does: (state, depth, *arguments) -> (result, state after)
MODEL: dict[str, Callable[..., tuple[Any, State]]] = {
    "push": _push,
    "pull": _pull,
    "wait": _wait,
    "versions": _versions,
    "delete": _delete,
}
