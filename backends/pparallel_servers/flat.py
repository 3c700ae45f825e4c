"""Values as one stretch of memory each, and a small head that says what lies where in it.

A model's state, a dict of plain tensors, is written from the tensors straight into that memory and
read straight from it; where its tensors go is worked out once for each layout. Any other large
value lies there as its serializer made it.
"""

from __future__ import annotations

import ctypes
import operator
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from typing_extensions import Buffer

from pparallel.errors import SerializationError
from pparallel.interfaces.ordered_server import copy_into
from pparallel.interfaces.serializer import Serializer
from pparallel.machine.copying import copy_all
from pparallel.runtime.flat_views import flat
from pparallel.runtime.memory import address_of
from pparallel.runtime.plain import PLAIN
from pparallel_servers import tensors

LARGE = 1 << 16  #: bytes below which a value stays as its serializer made it
SERIALIZED = b""  #: the head of what does
PLAIN_VALUE = b"P"  #: the head of what cannot change, and is kept as it is

_TENSORS, _BUFFERS = b"T", b"B"  #: what other heads begin with
_ALIGN = 64
_KEPT = 64  #: layouts that are remembered
_MALFORMED = (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError)
_CONTAINERS: dict[str, Callable[[Any, Any], Any]] = {
    "dict": lambda keys, values: dict(zip(keys, values, strict=True)),
    "OrderedDict": lambda keys, values: OrderedDict(zip(keys, values, strict=True)),
    "list": lambda _, values: list(values),
    "tuple": lambda _, values: tuple(values),
}


def is_plain(value: object) -> bool:
    """Return whether *value* is small and cannot change."""
    kind = type(value)
    if kind is bytes or kind is str:
        return len(value) < LARGE  # type: ignore[arg-type] # it is one of the two
    return kind in PLAIN


class Flat(NamedTuple):
    """A value that is to be written to memory.

    Attributes:
        head: says what lies where.
        nbytes: how much memory it takes.
        parts: what is copied: where to, from which address, how many bytes.
        source: what lies at these addresses.
    """

    head: bytes
    nbytes: int
    parts: Sequence[tuple[int, int, int]]
    source: Any

    def write(self, memory: memoryview) -> None:
        """Write the value to *memory*; other threads run meanwhile."""
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        copy_all([(start + at, address, nbytes) for at, address, nbytes in self.parts])


class _Known(NamedTuple):
    """What is known of values of one layout.

    Attributes:
        attributes: those of the value, as the serializer makes them.
    """

    head: bytes
    layout: tensors.Layout
    attributes: bytes


class _Found(NamedTuple):
    """Tensors in memory: what kind of value they make, where each lies, and where the last ends."""

    kind: str
    keys: tuple[str, ...]
    runs: list[tensors.Run]
    end: int


class Flattener:
    """Lays values out, and makes values of what was; any thread may use it.

    Attributes:
        serializer: makes what is not plain tensors.
    """

    def __init__(self, serializer: Serializer) -> None:
        self.serializer = serializer
        self._known: dict[object, _Known | None] = {}
        self._runs: dict[bytes, _Found | None] = {}

    def dumps(self, value: Any) -> Flat | Sequence[Buffer]:
        """Return *value* to be laid out, or where it is small what its serializer makes of it.

        Raises:
            SerializationError: it cannot be serialised.
        """
        return self._of_tensors(value) or self._of_buffers(self.serializer.dumps(value))

    def loads(self, head: bytes, memory: memoryview) -> Any:
        """Return the value that lies in *memory*, over it.

        Raises:
            SerializationError: *head* does not say what lies there.
        """
        try:
            if head[:1] == _TENSORS:
                return self._tensors(head, memory)
            buffers = _cut(memory, head[1:])
        except _MALFORMED as error:
            raise SerializationError("a value", error, loading=True) from error
        return self.serializer.loads(buffers)

    def fill(self, head: bytes, memory: memoryview, into: Any) -> None:
        """Copy the value that lies in *memory* into *into*.

        Raises:
            SerializationError: *head* does not say what lies there.
            ValueError: *into* does not fit; nothing was copied.
        """
        if head[:1] != _TENSORS or not self._fill_tensors(head, memory, into):
            copy_into(self.loads(head, memory), into)

    def _fill_tensors(self, head: bytes, memory: memoryview, into: Any) -> bool:
        """Do it without making tensors of the memory, or return False if they do not match."""
        if head not in self._runs:
            if len(self._runs) >= _KEPT:
                self._runs.clear()
            self._runs[head] = self._found(head)
        found = self._runs[head]
        if found is None or type(into).__name__ != found.kind or found.end > len(memory):
            return False
        if found.keys and tuple(into) != found.keys:
            return False
        targets = list(into.values() if found.keys else into)
        if not tensors.fit(targets, found.runs):
            return False
        start = address_of(memory)
        pairs = zip(targets, found.runs, strict=True)
        parts = sorted((to.data_ptr(), start + run.at, run.nbytes) for to, run in pairs)
        if _overlap(parts) and _overlap(parts := sorted(set(parts))):
            return False  # some share memory, and not one value
        copy_all(parts)
        tensors.changed(targets)
        return True

    def _found(self, head: bytes) -> _Found | None:
        """Return what *head* says of tensors that each lie in one run, None if it does not."""
        try:
            kind, keys, _, places, windows = self.serializer.loads([head[1:]])
            runs = tensors.runs(places, windows)
        except (AttributeError, *_MALFORMED):
            return None  # what loads it says what is wrong
        if runs is None or min((each.at for each in runs), default=0) < 0:
            return None
        end = max((each.at + each.nbytes for each in runs), default=0)
        return _Found(kind, tuple(keys), runs, end)

    def _of_tensors(self, value: Any) -> Flat | None:
        kind = type(value)
        if kind is dict or kind is OrderedDict:
            keys, found = tuple(value), list(value.values())
        elif kind is list or kind is tuple:
            keys, found = (), list(value)
        else:
            return None
        signed = tensors.signed(found) if found else None
        if signed is None or not set(map(type, keys)) <= {str}:
            return None
        signature, addresses = signed
        known = self._layout((kind, keys, signature), getattr(value, "__dict__", {}))
        if known is None:
            return None
        layout = known.layout
        froms = zip(layout.windows, addresses, layout.starts, strict=True)
        parts = [(to.at, at + start, to.nbytes) for to, at, start in froms if to.nbytes]
        return Flat(known.head, layout.nbytes, parts, found)

    def _layout(self, key: Any, attributes: dict[str, Any]) -> _Known | None:
        known = self._known.get(key)
        if known is None and key in self._known:
            return None
        try:  # as bytes: attributes change in place, and not all can be compared
            (stream,) = map(bytes, self.serializer.dumps(attributes)) if attributes else (b"",)
        except (SerializationError, ValueError):  # the serializer has to see to the whole
            return None
        if known is not None and known.attributes == stream:
            return known
        if len(self._known) >= _KEPT:
            self._known.clear()
        kind, keys, signature = key
        layout = tensors.laid_out(signature)
        if layout is None or layout.nbytes < LARGE:
            self._known[key] = None
            return None
        places = [tuple(each) for each in layout.places]
        windows = [tuple(each) for each in layout.windows]
        told = (kind.__name__, keys, attributes, places, windows)
        try:
            (head,) = self.serializer.dumps(told)
        except (SerializationError, ValueError):  # the serializer has to see to the whole
            return None
        known = self._known[key] = _Known(_TENSORS + bytes(head), layout, stream)
        return known

    def _tensors(self, head: bytes, memory: memoryview) -> Any:
        if address_of(memory) % tensors.ELEMENT:
            memory = memoryview(bytearray(memory))
        kind, keys, attributes, places, windows = self.serializer.loads([head[1:]])
        value = _CONTAINERS[kind](keys, tensors.rebuilt(memory, places, windows))
        if attributes:
            vars(value).update(attributes)
        return value

    def _of_buffers(self, buffers: Sequence[Buffer]) -> Flat | Sequence[Buffer]:
        raws = [flat(each) for each in buffers]
        lengths = [len(each) for each in raws]
        if sum(lengths) < LARGE:
            return buffers
        parts, end = [], 0
        for raw in raws:
            if len(raw):
                parts.append((end, address_of(raw), len(raw)))
            end += -(-len(raw) // _ALIGN) * _ALIGN
        head = _BUFFERS + array("Q", lengths).tobytes()
        return Flat(head, end, parts, (buffers, raws))


def _overlap(parts: Sequence[tuple[int, int, int]]) -> bool:
    ends = [to + nbytes for to, _, nbytes in parts]
    return not all(map(operator.le, ends, [to for to, _, _ in parts[1:]]))


def _cut(memory: memoryview, told: bytes) -> list[memoryview]:
    found, at = [], 0
    for length in memoryview(told).cast("Q"):
        found.append(memory[at : at + length])
        at += -(-length // _ALIGN) * _ALIGN
    return found
