"""Serializer: turn objects into buffers and back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from typing_extensions import Buffer, override

from pparallel.config import BackendConfig

Carried = Literal["all", "own", "nothing"]


class Serializer(ABC):
    """Turns objects into buffers and back. Holds no resources; any thread may use it.

    Guarantees:
        - Plain data comes back equal and of the same types: None, bool, int of any size, float,
          complex, str with any code point, bytes, bytearray, list, tuple, dict with any hashable
          plain key, set and frozenset, nested at least 50 deep
          (``SerializerSuite.test_keeps_plain_data``).
        - A tensor comes back with its values, shape, ``requires_grad``, class (``Parameter``) and,
          unless it has large gaps, strides (``SerializerSuite.test_keeps_tensors``).
        - A tensor in the midst of a graph comes back detached, without ``requires_grad``
          (``SerializerSuite.test_detaches_a_tensor_of_a_graph``).
        - Every dtype keeps every bit, bfloat16, complex and float8 too
          (``SerializerSuite.test_keeps_every_dtype``), and a lazily conjugated or negated tensor
          its values (``SerializerSuite.test_keeps_lazy_conjugates``).
        - Attributes of a tensor come back, those too that are tensors, hold some, or lead back to
          it (``SerializerSuite.test_keeps_attributes``).
        - An array comes back with its values, shape, dtype (byte order, records, dates and text
          too) and, unless it has large gaps, strides (``SerializerSuite.test_keeps_arrays``).
        - Tensors of one object that share storage share it again
          (``SerializerSuite.test_keeps_shared_storage``), views of another dtype too
          (``test_keeps_views_of_another_dtype``).
        - A tensor or array that is in an object twice is one object again
          (``SerializerSuite.test_keeps_what_is_one_object``).
        - What arrives is the receiver's own: writable, and a change to it is seen neither by the
          sender nor by another receiver, whether the buffers may be written to or not
          (``SerializerSuite.test_tensors_are_the_receivers_own``,
          ``test_arrays_are_the_receivers_own``).
        - :meth:`loads` builds large data over a buffer that it may write to
          (``SerializerSuite.test_builds_over_the_buffers_it_is_given``), and leaves one that it
          may not write to as it was (``test_copies_buffers_it_may_not_write_to``).
        - The bytes of a large contiguous tensor or array are not copied by :meth:`dumps`: they
          are a buffer of their own (``SerializerSuite.test_takes_large_data_out_of_band``).
        - Of a large storage only the part that is in use is sent
          (``SerializerSuite.test_sends_only_the_part_of_a_storage_in_use``).
        - A tensor or array that spans more than twice its elements costs its elements at both ends,
          and comes back contiguous (``SerializerSuite.test_sends_elements_without_large_gaps``);
          tensors that share storage keep it.
        - Any number of threads may use it at once
          (``SerializerSuite.test_may_be_used_by_many_threads``).
        - Buffers stay as they are when more is dumped or loaded
          (``SerializerSuite.test_earlier_buffers_stay_as_they_are``).
        - What cannot be serialised raises ``SerializationError``, whatever the object's own hooks
          raised, and be it nested ever so deep
          (``SerializerSuite.test_refuses_what_cannot_be_serialised``); the error names the culprit
          (``test_names_the_culprit``).
        - After such an error everything else is sent and read as before
          (``SerializerSuite.test_a_refusal_spoils_nothing``).
        - Bytes that are no object, cut short, or with a buffer lost, exchanged or of another
          length raise ``SerializationError`` (``SerializerSuite.test_refuses_damaged_bytes``,
          ``test_refuses_cut_streams``).

    Features:
        - ``code``: functions that are not importable (lambdas, closures, what lives in
          ``__main__``) can be sent (``SerializerSuite.test_sends_code``).
        - ``objects``: instances of any importable class can be sent, and any object that refers
          to itself; without it, plain data only (``SerializerSuite.test_sends_objects``,
          ``test_keeps_cycles``). An object that cannot be rebuilt raises ``SerializationError``
          with what its class said (``SerializerSuite.test_refuses_what_cannot_be_rebuilt``).

    Attributes:
        runs_code: whether :meth:`loads` may run code that the bytes name. What others can write to
            is read with such a serializer only where it is trusted.
        lends: whether what :meth:`dumps` returns may refer to memory that the sender has to keep
            until :meth:`loads` has been called; it says which by ``pparallel.runtime.lending``.
    """

    runs_code: ClassVar[bool] = True
    lends: bool = False

    @abstractmethod
    def dumps(self, obj: object) -> list[Buffer]:
        """Return *obj* as buffers, the first of them the structure, the rest large data.

        The buffers may alias the memory of *obj*: they are valid while it is unchanged.

        Raises:
            SerializationError: *obj* cannot be serialised.
        """

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        """Have it made anew from its config where it arrives, as in a pool's worker.

        Overridden by a serializer that is more than its class and its attribute ``config``.
        """
        return type(self), (self.config,)  # type: ignore[attr-defined]

    def carrying(self, names: Carried) -> Serializer:
        """Return a serializer like this one that sends other names of ``__main__`` along.

        One without the feature ``code`` sends none, and is returned itself.

        Args:
            names: ``all`` that what is sent uses; those that this process did not get from
                elsewhere (``own``), for the one that it got them from; or ``nothing``, for a
                receiver in this process.
        """
        return self

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
    default_backend: ClassVar[str] = "dill"
