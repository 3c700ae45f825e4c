"""``machin.parallel.pickle``: any object as one bytes object, on serializer ``dill``.

Importing this changes nothing outside of it: no sharing strategy of torch's, no setting of dill's,
no table of :mod:`copyreg`.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

from typing_extensions import Buffer, override

from pparallel.builder import build, load
from pparallel.interfaces.serializer import Serializer, SerializerConfig

__all__ = ["Pickler", "dumps", "loads", "mark_static_module"]


class Writable(Protocol):
    """A file that bytes are written to."""

    def write(self, data: bytes, /) -> object:
        """Write *data*."""


class Pickler:
    """Writes objects to a file, each as :func:`dumps` returns it.

    What is in the file can be read with :func:`loads`, or object by object with ``pickle.load``.

    Args:
        file: open for writing bytes.
        recurse: as for :func:`dumps`.
        copy_tensor: as for :func:`dumps`; not copied by default.

    Raises:
        TypeError: *file* cannot be written to.
    """

    def __init__(self, file: Writable, recurse: bool = False, copy_tensor: bool = False) -> None:
        if not callable(getattr(file, "write", None)):
            message = f"a Pickler writes to a file open for bytes: {file!r} has no method 'write'"
            raise TypeError(message)
        self._file = file
        self._options = recurse, copy_tensor

    def dump(self, obj: object) -> None:
        """Write *obj*.

        Raises:
            SerializationError: it cannot be serialised; nothing is written.
        """
        self._file.write(dumps(obj, *self._options))


def dumps(obj: object, recurse: bool = False, copy_tensor: bool = True) -> bytes:
    """Return *obj* as bytes: lambdas, local functions and tensors on any device too.

    Args:
        obj: anything that serializer ``dill`` takes.
        recurse: send with a function of an importable module the globals it names, by value.
            Lambdas and local functions are sent either way.
        copy_tensor: send a tensor's bytes. ``False`` sends a reference: the tensor moves into
            shared memory (on a GPU: CUDA IPC), both sides see each other's writes, the receiver is
            on this machine, and this process keeps the tensor until it has arrived.

    Raises:
        SerializationError: it cannot be serialised.
    """
    buffers = serializer(recurse, copy_tensor).dumps(obj)
    if len(buffers) == 1 and bytes(memoryview(buffers[0])[:1]) == pickle.PROTO:
        return bytes(buffers[0])
    return pickle.dumps(_Parts(buffers), 5)


def loads(data: Buffer) -> Any:
    """Return the object that :func:`dumps`, ``pickle.dumps`` or ``dill.dumps`` made *data* of.

    What arrives is the receiver's own, unless a tensor was sent as a reference. The bytes may run
    code: they come from whoever is trusted.

    Raises:
        SerializationError: they hold no object that can be rebuilt here.
    """
    return serializer().loads([data])


def mark_static_module(module: ModuleType) -> None:
    """Have all that *module* defines pickled by reference, in this process from now on.

    For modules that are the same in every process and whose contents cannot be sent, such as one
    that holds pointers into a C library. The module itself is left as it is.
    """
    marking = serializer()
    if not isinstance(marking, _MarksModules):
        message = f"{type(marking).__name__} marks no modules: install pparallel's own serializers"
        raise TypeError(message)
    marking.mark_static_module(module)


@lru_cache(maxsize=4)
def serializer(recurse: bool = False, copy_tensor: bool = True) -> Serializer:
    """Return the serializer with these options."""
    options = {"backend": "dill", "recurse": recurse, "copy_tensor": copy_tensor}
    built: Serializer = build(load(SerializerConfig, options))
    return built


@runtime_checkable
class _MarksModules(Protocol):
    def mark_static_module(self, module: ModuleType) -> None: ...


class _Parts:
    """Buffers on their way in one stream, which rebuilds what they hold as it is read."""

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        self._buffers = buffers

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, tuple(map(pickle.PickleBuffer, self._buffers))


def _rebuilt(*buffers: Buffer) -> Any:
    return serializer().loads(buffers)
