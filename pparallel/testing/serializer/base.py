"""What the parts of the serializer's suite share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from pparallel.interfaces.serializer import Serializer, SerializerConfig
from pparallel.testing.suite import Suite


class SerializerTests(Suite):
    """The fixtures of the serializer's tests."""

    interface: ClassVar[str] = "serializer"

    @pytest.fixture
    def serializer(
        self, config: SerializerConfig, build: Callable[[SerializerConfig], Serializer]
    ) -> Serializer:
        """The serializer under test."""
        return build(config)


def round_trip(serializer: Serializer, obj: Any) -> Any:
    """Return *obj* as a receiver gets it: from buffers of its own."""
    return serializer.loads([bytearray(each) for each in serializer.dumps(obj)])
