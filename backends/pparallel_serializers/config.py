"""The serializers' configs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

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
        keep_shared: as torch.multiprocessing, send a reference to a CPU tensor that is in shared
            memory already (``share_memory_()``), the bytes of all others, and refuse a tensor in
            the midst of a graph.
    """

    backend: Literal["dill"] = "dill"
    recurse: bool = False
    copy_tensor: bool = True
    keep_shared: bool = False


class CloudpickleSerializerConfig(SerializerConfig, frozen=True):
    """cloudpickle, as notebooks and other systems know it, with tensors and arrays out of band.

    Attributes:
        backend: ``cloudpickle``.
    """

    backend: Literal["cloudpickle"] = "cloudpickle"


class SafeSerializerConfig(SerializerConfig, frozen=True):
    """Data only, for bytes that come from a stranger; neither side reaches pickle.

    Attributes:
        backend: ``safe``.
        max_bytes: size of the largest object, to send or to receive: the bytes of all its
            buffers, and 128 more for each value and each container's beginning and end.
            Loading allocates at most eight times as much.
        max_depth: how deep containers may be nested.
    """

    backend: Literal["safe"] = "safe"
    max_bytes: int = Field(default=1 << 30, gt=0)
    max_depth: int = Field(default=100, gt=0, le=1000)
