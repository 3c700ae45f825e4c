"""Objects of any class, and code."""

from __future__ import annotations

import math
from typing import Any

from pparallel.interfaces.serializer import Serializer
from pparallel.testing.serializer.base import SerializerTests, round_trip
from pparallel.testing.serializer.samples import Plain, Point
from pparallel.testing.suite import requires


class ObjectTests(SerializerTests):
    """What serializers take that declare ``objects`` or ``code``."""

    @requires("objects")
    def test_sends_objects(self, serializer: Serializer) -> None:
        shared = [1]
        found = round_trip(serializer, Plain(a=shared, b=shared, error=ValueError("no")))
        assert found.a is found.b
        assert found.error.args == ("no",)
        assert type(found) is Plain
        assert round_trip(serializer, Point(1, y=2)) == Point(1, 2)
        assert round_trip(serializer, [Plain, math.sqrt, round_trip]) == [
            Plain,
            math.sqrt,
            round_trip,
        ]

    @requires("objects")
    def test_keeps_cycles(self, serializer: Serializer) -> None:
        node: Any = Plain(name="node")
        node.me = [node]
        found = round_trip(serializer, node)
        assert found.me[0] is found

    @requires("code")
    def test_sends_code(self, serializer: Serializer) -> None:
        factor = 3

        class Local(Plain):
            def __init__(self, a: int) -> None:
                super().__init__(a=a)

            def times(self, n: int) -> int:
                return n * factor

        def factorial(n: int) -> int:
            return 1 if n < 2 else n * factorial(n - 1)

        assert round_trip(serializer, lambda n: n + factor)(1) == 4
        assert round_trip(serializer, factorial)(5) == 120
        assert round_trip(serializer, Local(1)).times(2) == 6
        assert isinstance(round_trip(serializer, Local(1)), Local)
