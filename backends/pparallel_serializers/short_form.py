"""The short form of tensors with nothing but numbers and strings beside them.

A pickler asks for the parts of a tensor one by one, in Python, which takes as long as copying a
megabyte. Most of what is sent is one tensor or a tuple of a few: that is written at once. Whatever
is out of the ordinary goes the usual way: a tensor with gaps, a gradient or attributes, one that
numpy cannot show, two over one storage, a container that is not a tuple.

The stream is ``MARK`` and a pickle in which ``[dtype, content, shape]`` stands for a tensor, for
nothing else is a list there. *content* is its bytes, or if they are many their number: then they
are the next buffer.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from typing_extensions import Buffer

from pparallel_serializers.storages import INLINE, aligned
from pparallel_serializers.tensors import dtype_named, name_of

if TYPE_CHECKING:
    import torch

MARK = b"T"  #: a pickle begins with another byte

_PLAIN = frozenset({bool, bytes, complex, float, int, str, type(None)})
_LONG = 16  #: items above which a tuple goes the usual way
_DEPTH = 3  #: tuples in one another that are looked through
_NONE = object()  #: there is no short form of this


def dumps(obj: object) -> list[Buffer] | None:
    """Return *obj* in the short form, or ``None`` where it has none."""
    kind = type(obj)
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    if tensor is None or not (kind is tuple or kind is tensor):
        return None
    contents: dict[int, memoryview] = {}
    form = _form(obj, tensor, contents, _DEPTH)
    if form is _NONE or not contents:
        return None
    large = [each for each in contents.values() if each.nbytes > INLINE]
    return [MARK + pickle.dumps(form, 5), *large]


def loads(stream: Buffer, buffers: Sequence[Buffer]) -> Any:
    """Return the object that :func:`dumps` was given; *stream* is without the mark."""
    contents = iter(buffers)
    obj = _filled(pickle.loads(stream), contents)
    if next(contents, None) is not None:
        raise pickle.UnpicklingError("there are more buffers than tensors")
    return obj


def _form(obj: Any, tensor: type, contents: dict[int, memoryview], depth: int) -> Any:
    kind = type(obj)
    if kind in _PLAIN:
        return obj
    if kind is tensor:
        return _described(obj, contents)
    if kind is not tuple or not depth or len(obj) > _LONG:
        return _NONE
    forms = []
    for each in obj:
        form = _form(each, tensor, contents, depth - 1)
        if form is _NONE:
            return _NONE
        forms.append(form)
    return tuple(forms)


def _described(tensor: torch.Tensor, contents: dict[int, memoryview]) -> Any:
    try:
        if tensor.requires_grad or not tensor.is_contiguous() or tensor.__dict__:
            return _NONE
        # What numpy shows keeps its tensor alive.
        content = memoryview(cast("Buffer", tensor.numpy()))
    except (TypeError, RuntimeError):  # as for compressed sparse ones, which are not contiguous
        return _NONE
    storage = tensor.untyped_storage().data_ptr()
    nbytes = content.nbytes
    if not nbytes or storage in contents:
        return _NONE
    contents[storage] = content
    told = bytes(content) if nbytes <= INLINE else nbytes
    return [name_of(tensor.dtype), told, tuple(tensor.shape)]


def _filled(form: Any, contents: Iterator[Buffer]) -> Any:
    if type(form) is tuple:
        return tuple([_filled(each, contents) for each in form])
    if type(form) is not list:
        return form
    dtype, content, shape = form
    if not isinstance(content, bytes):
        length, content = content, next(contents, b"")
        found = memoryview(content).nbytes
        if found != length:
            raise pickle.UnpicklingError(f"a buffer has {found} of its {length} bytes")
    tensor = aligned(content, dtype_named(dtype))
    return tensor if len(shape) == 1 else tensor.resize_(shape)
