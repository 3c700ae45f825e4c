"""One call on an ordered server, as its caller saw it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

READS = frozenset({"pull", "wait", "versions"})  #: operations that change nothing


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
        result: what it returned; :class:`Unknown` if it raised, or its caller died.
        start: when it was called, by :func:`time.monotonic`, which the members of one machine
            share.
        end: when it returned; of no matter where the result is unknown.
        member: who called.
    """

    key: Hashable
    name: str
    arguments: tuple[Any, ...]
    result: Any
    start: float
    end: float
    member: str = ""

    @property
    def is_known(self) -> bool:
        """Whether it returned."""
        return not isinstance(self.result, Unknown)

    @property
    def says_something(self) -> bool:
        """Whether it can be at odds with others, or explain them."""
        if self.name == "wait" and self.result is None and self.arguments[1] != 0:
            return False  # time passed: what was held then says nothing
        return self.is_known or self.name not in READS

    @override
    def __str__(self) -> str:
        arguments = ", ".join(map(repr, self.arguments))
        when = f"{self.start * 1e3:.3f} to {self.end * 1e3:.3f} ms"
        return f"{self.member}: {self.name}({arguments}) -> {self.result!r}, {when}"
