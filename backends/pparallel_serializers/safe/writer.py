"""Takes data apart into a flat run of values, the steps between them, and buffers."""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import msgpack
from typing_extensions import Buffer

from pparallel_serializers.bytype import ByType
from pparallel_serializers.refusals import RefusedError
from pparallel_serializers.safe import arrays, stream, tensors
from pparallel_serializers.safe.stream import VALUE, Budget, Node
from pparallel_serializers.storages import INLINE, SentStorage

TAKEN = (
    "safe takes data only: None, bool, int, float, complex, str, bytes, bytearray, list, tuple,"
    " dict, OrderedDict, set, frozenset, torch.Size, tensors, and numpy arrays and scalars, each"
    " of exactly that type"
)

_PLAIN = (type(None), bool, float)
_TEXT = (str, bytes)


class Writer:
    """Writes one object.

    Attributes:
        stores: what :func:`~pparallel_serializers.storages.sent_for` knows of this object.
    """

    def __init__(self, budget: Budget, max_depth: int) -> None:
        self.budget, self.max_depth = budget, max_depth
        self.stores: dict[tuple[int, int], SentStorage] = {}
        self._values: list[Any] = []
        self._steps: list[int] = []
        self._taken = 0  # values that a step has taken into its container
        self._buffers: list[Buffer] = []
        self._storages = _Numbered()
        self._known = _Numbered()

    def write(self, obj: object) -> list[Buffer]:
        """Return *obj* as buffers."""
        if splitters.waiting:
            splitters.look()
        self._walk(obj)
        of_arrays, self._buffers = self._buffers, []
        for each in self._storages.objects:
            self._store(each)
        buffers = self._buffers + of_arrays
        lengths = [memoryview(each).nbytes for each in buffers]
        steps = len(self._steps) // 2
        self.budget.spend(sum(lengths) + VALUE * (len(self._values) + steps))
        numbers = steps, len(self._values), len(self._storages.objects)
        parts: list[Buffer] = [
            stream.HEAD.pack(stream.MARK, *numbers),
            struct.pack(f"<{len(self._steps)}I", *self._steps),
            struct.pack(f"<{len(lengths)}Q", *lengths),
            _packed(self._values),
        ]
        first = b"".join(parts)
        self.budget.spend(len(first))
        return [first, *buffers]

    def once(self, obj: object, split: Callable[[], Node]) -> Node:
        """Return *obj* as *split* does; where it comes again, the number it is known by."""
        number = self._known.number(obj)
        if number is not None:
            return Node(stream.SAME, (number,))
        self._known.add(obj)
        return split()

    def storage(self, sent: SentStorage) -> int:
        """Return the number of the storage that is *sent*."""
        number = self._storages.number(sent)
        return self._storages.add(sent) if number is None else number

    def placed(self, data: memoryview) -> bytes | None:
        """Return *data* if it is small enough to be a value, else make it a buffer."""
        if data.nbytes <= INLINE:
            return bytes(data)
        self._buffers.append(data)
        return None

    def _store(self, sent: SentStorage) -> None:
        start, data = sent.window()
        self._values += (str(sent.storage.device), start, self.placed(data))

    def _walk(self, obj: object) -> None:
        values = self._values
        text = 0
        containers: list[Iterator[Any]] = [iter((obj,))]
        while containers:
            for each in containers[-1]:
                kind = type(each)
                if kind in _PLAIN or (kind is int and -(1 << 63) <= each < 1 << 64):
                    values.append(each)
                elif kind in _TEXT:
                    text += len(each)
                    values.append(each)
                else:
                    # Early: one list in many places is many lists.
                    self.budget.check(text + VALUE * (len(values) + len(self._steps) // 2))
                    containers.append(self._opened(each, len(containers)))
                    break
            else:
                containers.pop()
                if containers:
                    self._step(stream.END)
        self.budget.check(text)

    def _opened(self, obj: Any, depth: int) -> Iterator[Any]:
        if depth > self.max_depth:
            raise RefusedError(
                f"it is nested more than {self.max_depth} deep (max_depth), or contains itself"
            )
        split = splitters.get(type(obj))
        if split is None:
            raise RefusedError(TAKEN, obj)
        node = split(self, obj)
        self._step(node.code)
        return iter(node.children)

    def _step(self, code: int) -> None:
        self._steps += (len(self._values) - self._taken, code)
        self._taken = len(self._values)


class _Numbered:
    """Objects by number, kept so that their ids are not used again."""

    def __init__(self) -> None:
        self.objects: list[Any] = []
        self._numbers: dict[int, int] = {}

    def number(self, obj: object) -> int | None:
        return self._numbers.get(id(obj))

    def add(self, obj: object) -> int:
        self._numbers[id(obj)] = len(self.objects)
        self.objects.append(obj)
        return len(self.objects) - 1


def _packed(values: list[Any]) -> memoryview:
    packed = msgpack.packb(values, unicode_errors="surrogatepass")
    count = len(values)
    return memoryview(packed)[1 if count < 16 else 3 if count < 1 << 16 else 5 :]


def _integer(writer: Writer, value: int) -> Node:
    size = value.bit_length() // 8 + 1
    return Node(stream.INTEGER, (value.to_bytes(size, "little", signed=True),))


def _pairs(mapping: dict[Any, Any]) -> Iterator[Any]:
    return chain.from_iterable(mapping.items())


def _ordered(writer: Writer, mapping: OrderedDict[Any, Any]) -> Node:
    node = Node(stream.ORDERED, _pairs(mapping))
    attributes = vars(mapping)  # a state_dict() has some
    return Node(stream.ATTRIBUTES, (node, attributes)) if attributes else node


splitters: ByType[Callable[[Writer, Any], Node]] = ByType(
    {
        Node: lambda writer, node: node,
        list: lambda writer, each: Node(stream.LIST, each),
        tuple: lambda writer, each: Node(stream.TUPLE, each),
        set: lambda writer, each: Node(stream.SET, each),
        frozenset: lambda writer, each: Node(stream.FROZENSET, each),
        dict: lambda writer, each: Node(stream.DICT, _pairs(each)),
        OrderedDict: _ordered,
        int: _integer,
        complex: lambda writer, each: Node(stream.COMPLEX, (each.real, each.imag)),
        bytearray: lambda writer, each: Node(stream.BYTEARRAY, (bytes(each),)),
    },
    {"torch": tensors.splitters, "numpy": arrays.splitters},
)
