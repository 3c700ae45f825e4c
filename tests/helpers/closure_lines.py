"""Two ends of a line over which functions go."""

from __future__ import annotations

import marshal
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

import pparallel
from pparallel.runtime.rpc.closures import KeptFunctions, SentFunctions
from pparallel_serializers import DillSerializerConfig


class Line:
    """One member that calls functions, and one that runs them."""

    def __init__(self, config: Any = None) -> None:
        self.serializer = pparallel.build(config or DillSerializerConfig())
        self.sent, self.kept = SentFunctions(self.serializer), KeptFunctions(self.serializer)

    def __call__(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return what the function returns where it arrives."""
        return self.call(function, *args)[1]

    def call(self, function: Callable[..., Any], *args: Any, to: str = "b") -> tuple[str, Any]:
        """Return how the function travels too: as itself, with a number, or as a number."""
        told = self.sent.told(to, function)
        if told is None:
            found = self.serializer.loads(self.serializer.dumps(function))
            return "itself", found(*args)
        arrived = marshal.loads(marshal.dumps(told))
        found, new = self.kept.function("a", 1, arrived)
        if new:
            self.sent.kept(to, new)
        return "both" if told[1] else "number", found(*args)

    def size(self) -> int:
        """Return how many functions the member that runs them keeps."""
        return sum(map(len, list(self.kept._kept.values())))

    def ways(self, function: Callable[..., Any], *args: Any) -> list[str]:
        return [self.call(function, *args)[0] for _ in range(3)]


SENT_ONCE = ["itself", "both", "number"]
ALWAYS = ["itself"] * 3


@pytest.fixture
def line() -> Line:
    return Line()


def adder(amount: Any) -> Callable[[Any], Any]:
    return lambda number: number + amount


def giving(value: Any) -> Callable[[], Any]:
    return lambda: value


def of_elsewhere(source: str, **namespace: Any) -> tuple[Any, dict[str, Any]]:
    """Return a function whose globals travel too, as those of ``__main__`` do, and these."""
    namespace = {"__name__": "elsewhere", "__builtins__": __builtins__, **namespace}
    exec(textwrap.dedent(source), namespace)
    return namespace.pop("f"), namespace


def multiplier(amount: int) -> Any:
    return lambda number: number * amount
