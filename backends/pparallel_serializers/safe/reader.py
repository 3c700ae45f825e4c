"""Puts data together again, from bytes that may say anything."""

from __future__ import annotations

import reprlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

import msgpack
from typing_extensions import Buffer

from pparallel_serializers.refusals import RefusedError
from pparallel_serializers.safe import arrays, stream, tensors
from pparallel_serializers.safe.stream import HEAD, LENGTH, STEP, VALUE, Budget
from pparallel_serializers.storages import ReceivedStorage

T = TypeVar("T")

FEW = 64  #: keys of one hash that a dict or set may have, on average over its keys


class Reader:
    """Reads one object.

    Attributes:
        storages: those of the object's tensors, by number.
    """

    def __init__(self, budget: Budget, max_depth: int) -> None:
        self.budget, self.max_depth = budget, max_depth
        self.storages: list[ReceivedStorage] = []
        self._known: list[Any] = []
        self._buffers: Iterator[Buffer] = iter(())

    def read(self, buffers: Sequence[Buffer]) -> Any:
        """Return the object that *buffers* hold."""
        if not buffers:
            raise RefusedError("there are no bytes at all")
        lengths = [memoryview(each).nbytes for each in buffers]
        self.budget.spend(sum(lengths))
        first = memoryview(buffers[0]).cast("B")
        if lengths[0] < HEAD.size or bytes(first[:4]) != stream.MARK:
            raise RefusedError("this is no stream of the serializer safe, or of another version")
        _, steps, count, number = HEAD.unpack_from(first)
        middle = HEAD.size + STEP.size * steps
        end = middle + LENGTH.size * (len(buffers) - 1)
        if end + count > len(first) or 3 * number > count:
            raise RefusedError("the stream was cut short")
        self.budget.spend(VALUE * (steps + count))
        # Copies: until Python 3.12.7 an iterator of struct over a memoryview crashes the collector
        # when both are garbage, as after an error (cpython 77894).
        said = [length for (length,) in LENGTH.iter_unpack(bytes(first[middle:end]))]
        if said != lengths[1:]:
            now, then = reprlib.repr(lengths[1:]), reprlib.repr(said)
            raise RefusedError(f"its buffers have {now} bytes, not {then}")
        self._buffers = iter(buffers[1:])
        values = _unpacked(first[end:], count)
        self._read_storages(values[count - 3 * number :])
        del values[count - 3 * number :]
        obj = self._walk(STEP.iter_unpack(bytes(first[HEAD.size : middle])), values)
        if next(self._buffers, None) is not None:
            raise RefusedError("nothing takes one of its buffers")
        return obj

    def content(self, inline: object) -> Buffer:
        """Return the bytes that stand among the values, or, if none do, in the next buffer."""
        if inline is not None:
            return _bytes([inline])
        found = next(self._buffers, None)
        if found is None:
            raise RefusedError("it refers to a buffer that has not come")
        return found

    def add(self, obj: T) -> T:
        """Return *obj*, from now on known by the next number."""
        self._known.append(obj)
        return obj

    def same(self, number: object) -> Any:
        """Return what :meth:`add` was given."""
        if type(number) is not int or not 0 <= number < len(self._known):
            raise RefusedError("it refers to a tensor that has not come")
        return self._known[number]

    def _read_storages(self, values: list[Any]) -> None:
        for device, start, inline in zip(*[iter(values)] * 3, strict=True):
            content = self.content(inline)
            self.storages.append(tensors.storage(content, device, start))

    def _walk(self, steps: Iterator[tuple[int, ...]], values: list[Any]) -> Any:
        rest = iter(values)
        taken = 0
        outer: list[tuple[int, list[Any]]] = []
        code, children = stream.END, list[Any]()
        for gap, step in steps:
            children += islice(rest, gap)
            taken += gap
            if step != stream.END:
                outer.append((code, children))
                code, children = step, []
                if len(outer) > self.max_depth:
                    raise RefusedError(f"it is nested more than {self.max_depth} deep (max_depth)")
                continue
            if not outer:
                raise RefusedError("a container ends that has not begun")
            join = _join.get(code)
            if join is None:
                raise RefusedError(f"no container has the code {code}")
            joined = join(self, children)
            code, children = outer.pop()
            children.append(joined)
        children += rest
        if outer or taken > len(values) or len(children) != 1:
            raise RefusedError("its containers do not end, or hold more than there is")
        return children[0]


def _unpacked(packed: memoryview, count: int) -> list[Any]:
    """Return the *count* values in *packed*, which are no containers, and each checked by C."""
    unpacker = msgpack.Unpacker(
        max_buffer_size=max(len(packed), 1),
        max_array_len=0,
        max_map_len=0,
        max_ext_len=0,
        ext_hook=_refuse_extension,
        unicode_errors="surrogatepass",
    )
    unpacker.feed(packed)
    values = list(islice(unpacker, count))
    if len(values) != count or unpacker.tell() != len(packed):
        raise RefusedError("the stream was cut short, or holds more than it says")
    return values


def _refuse_extension(code: int, data: bytes) -> object:
    raise RefusedError(f"msgpack's extension {code} is none of ours")


def _exactly(kind: type[Any], value: object) -> Any:
    if type(value) is not kind:
        raise RefusedError(f"{type(value).__name__} stands where {kind.__name__} should")
    return value


def _pairs(children: list[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(_spread(children[::2]), children[1::2], strict=True)


def _spread(keys: list[Any]) -> list[Any]:
    """Return *keys*, unless so many have one hash that to look each up would take long.

    Python's hashes of numbers, and of tuples of them, can be foreseen, other than those of texts.
    Equal hashes are counted: keys that share only some bits of theirs are told apart soon.
    """
    hashes = list(map(hash, keys))
    alike = len(hashes) - len(set(hashes))
    if alike > FEW and sum(n * n for n in Counter(hashes).values()) > FEW * len(keys):
        raise RefusedError(f"{alike} of {len(keys)} keys collide, as if made to")
    return keys


def _complex(children: list[Any]) -> complex:
    real, imaginary = children
    return complex(_exactly(float, real), _exactly(float, imaginary))


def _bytes(children: list[Any]) -> bytes:
    (content,) = children
    found: bytes = _exactly(bytes, content)
    return found


def _attributes(children: list[Any]) -> Any:
    target, attributes = children
    known = getattr(target, "__dict__", None)
    if type(known) is not dict or not all(type(each) is str for each in _exactly(dict, attributes)):
        raise RefusedError(f"a {type(target).__name__} has attributes that it cannot have")
    known.update(attributes)
    return target


_join: dict[int, Callable[[Reader, list[Any]], Any]] = {
    stream.LIST: lambda reader, children: children,
    stream.TUPLE: lambda reader, children: tuple(children),
    stream.DICT: lambda reader, children: dict(_pairs(children)),
    stream.ORDERED: lambda reader, children: OrderedDict(_pairs(children)),
    stream.SET: lambda reader, children: set(_spread(children)),
    stream.FROZENSET: lambda reader, children: frozenset(_spread(children)),
    stream.BYTEARRAY: lambda reader, children: bytearray(_bytes(children)),
    stream.INTEGER: lambda reader, children: int.from_bytes(
        _bytes(children), "little", signed=True
    ),
    stream.COMPLEX: lambda reader, children: _complex(children),
    stream.ATTRIBUTES: lambda reader, children: _attributes(children),
    stream.SAME: lambda reader, children: reader.same(*children),
    stream.SIZE: lambda reader, children: tensors.size(children),
    stream.TENSOR: tensors.join,
    stream.ARRAY: arrays.join,
    stream.SCALAR: lambda reader, children: arrays.scalar(children),
}
