"""The serializers' configs."""

from __future__ import annotations

from typing import Literal

from pparallel.interfaces.serializer import SerializerConfig


class PickleSerializerConfig(SerializerConfig, frozen=True):
    """Standard pickle, with tensors and arrays out of band; functions go by name.

    Attributes:
        backend: ``pickle``.
    """

    backend: Literal["pickle"] = "pickle"


class DillSerializerConfig(SerializerConfig, frozen=True):
    """Pickle that also sends lambdas, closures and what lives in ``__main__``.

    Attributes:
        backend: ``dill``.
        recurse: send with a function of an importable module the globals it names, by value.
            Without it such a function sees the receiver's own module. What lives in ``__main__``
            takes along the globals it names either way.
        copy_tensor: send a tensor's bytes. ``False`` sends a reference: the tensor moves into
            shared memory (on a GPU: CUDA IPC), both sides see each other's writes, the receiver
            must be on this machine, and the sender must keep the tensor until it has arrived.
    """

    backend: Literal["dill"] = "dill"
    recurse: bool = False
    copy_tensor: bool = True
