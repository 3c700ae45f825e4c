"""What the members of the transport suite's tests call in one another."""

from __future__ import annotations

import threading
from typing import Any

from pparallel.runtime.rpc import RemoteRef, RpcGroup, context
from pparallel.testing.patience import PATIENCE

SEEN: dict[str, list[Any]] = {}  #: values that were noted, by the member
GATES: dict[str, threading.Event] = {}  #: by the member


def _here() -> list[Any]:
    return SEEN.setdefault(context.endpoint().name + str(id(context.endpoint())), [])


def note(value: object) -> None:
    """Remember *value* in the member where this runs."""
    _here().append(value)


def noted() -> list[Any]:
    """Return the values that were noted in the member where this runs."""
    return list(_here())


def add(a: int, b: int) -> int:
    """Return the sum."""
    return a + b


def add_late(a: int, b: int) -> int:
    """Return the sum, after a moment."""
    hold(0.1)
    return a + b


def add_and_note(a: int, b: int) -> int:
    """Return the sum, and remember the two numbers."""
    note((a, b))
    return a + b


def add_listed(numbers: list[int]) -> int:
    """Return the sum of two numbers, and remember them."""
    return add_and_note(*numbers)


def hold(seconds: float) -> None:
    """Keep a handler thread."""
    threading.Event().wait(seconds)


def give_back(value: Any) -> Any:
    """Return *value*."""
    return value


def fail(message: str) -> None:
    """Raise."""
    raise LookupError(message)


def bounce(to: str, depth: int, payload: bytes) -> list[str]:
    """Call back and forth between this member and *to*; return who has been called."""
    endpoint = context.endpoint()
    if depth == 0:
        return [endpoint.name]
    group = RpcGroup(endpoint, "world", endpoint.member.names)
    rest: list[str] = group.rpc_sync(to, bounce, args=(endpoint.name, depth - 1, payload))
    return [endpoint.name, *rest]


def wait_at_gate(value: Any = None) -> Any:
    """Block until the gate of this member is opened; return *value*, or the member's name."""
    name = context.endpoint().name
    assert GATES.setdefault(name, threading.Event()).wait(PATIENCE)
    return name if value is None else value


def open_gate() -> None:
    """Let those at the gate of this member go."""
    GATES.setdefault(context.endpoint().name, threading.Event()).set()


class Holder:
    """A value to refer to."""

    def __init__(self, value: int) -> None:
        self.value = value

    def add(self, amount: int) -> int:
        """Change the value and return it."""
        self.value += amount
        return self.value


def read_ref(ref: RemoteRef[Any]) -> Any:
    """Read a reference that was passed on."""
    return ref.to_here()


def kept_values() -> int:
    """Return how many values the member where this runs keeps for others."""
    return len(context.endpoint().refs)


def bound_group(group: RpcGroup) -> RpcGroup:
    """Check that *group* belongs to the member where this runs, and send it back."""
    assert group.get_cur_name() == context.endpoint().name
    return group
