"""Serializer: turn objects into buffers and back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from typing_extensions import Buffer

from pparallel.config import BackendConfig


class Serializer(ABC):
    """Turns objects into buffers and back. Holds no resources; any thread may use it.

    Guarantees:
        - A tensor or array comes back with its values, dtype (bfloat16 and complex too), strides,
          ``requires_grad``, class (``Parameter``) and attributes
          (``SerializerSuite.test_keeps_tensors``, ``test_keeps_arrays``).
        - Tensors of one object that share storage share it again
          (``SerializerSuite.test_keeps_shared_storage``).
        - The bytes of a large contiguous tensor or array are not copied by :meth:`dumps`: they
          are a buffer of their own (``SerializerSuite.test_takes_large_data_out_of_band``).
        - What cannot be serialised raises ``SerializationError``, whatever the object's own hooks
          raised (``SerializerSuite.test_refuses_what_cannot_be_serialised``).
        - Bytes that are no object, cut short or empty, raise ``SerializationError``
          (``SerializerSuite.test_refuses_damaged_bytes``).

    Features:
        - ``code``: functions that are not importable (lambdas, closures, what lives in
          ``__main__``) can be sent (``SerializerSuite.test_sends_code``).
        - ``objects``: instances of any importable class can be sent; without it, plain data only
          (``SerializerSuite.test_sends_objects``).
    """

    @abstractmethod
    def dumps(self, obj: object) -> list[Buffer]:
        """Return *obj* as buffers, the first of them the structure, the rest large data.

        The buffers may alias the memory of *obj*: they are valid while it is unchanged.

        Raises:
            SerializationError: *obj* cannot be serialised.
        """

    @abstractmethod
    def loads(self, buffers: Sequence[Buffer]) -> Any:
        """Return the object that *buffers* hold.

        The object may alias the buffers' memory: the caller gives them away.

        Raises:
            SerializationError: the buffers hold no object that can be rebuilt here.
        """


class SerializerConfig(BackendConfig[Serializer], frozen=True):
    """What every serializer is told: nothing but its name."""

    interface: ClassVar[str] = "serializer"
