"""How items and results are written into messages."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

from pparallel.errors import SerializationError
from pparallel.interfaces.serializer import Serializer
from pparallel.runtime.plain import are_plain
from pparallel.runtime.pools.lots import Lot
from pparallel.runtime.pools.messages import Parcels
from pparallel.runtime.pools.values import PARCELS, RANGE, VALUES, head_and_files

#: what users call the parts of an item
_NAMES = {"call": {"[1]": "args", "[2]": "kwargs"}, "star": {"": "args"}}
_ENOUGH = 45_000  #: bytes of message after which a lot is cut
_ENOUGH_BESIDE = 16 << 20  #: bytes beside the messages after which a lot is cut


class Written(NamedTuple):
    """The items of a lot as they go into a message.

    Attributes:
        kind: ``RANGE``, ``VALUES`` or ``PARCELS``.
        content: accordingly; of parcels the heads, each with the number of its files if any.
        files: the descriptors of the parcels' files, to be closed after sending.
        size: how many items were written; the others are to be sent later.
        failure: why the item after those cannot be sent.
    """

    kind: int
    content: Any
    files: list[int]
    size: int
    failure: BaseException | None = None

    def drop(self, parcels: Parcels) -> None:
        """Release it, for it will not be sent."""
        files = self.files
        if self.kind == PARCELS:
            for each in self.content:
                head, count = head_and_files(each)
                parcels.drop(head, files[:count])
                del files[:count]


class Writer:
    """Writes the items of lots, in the process of the pool."""

    def __init__(self, serializer: Serializer) -> None:
        self._serializer = serializer

    def write(self, lot: Lot, parcels: Parcels) -> Written:
        """Return as many of the items of *lot* as make up a message, or a failure.

        Large data goes into *parcels*.
        """
        items, style = lot.items(), lot.style
        if isinstance(items, range):
            return Written(RANGE, (items.start, items.stop, items.step), [], len(items))
        if style == "call":
            plain = all(len(each) == 2 for each in items) and are_plain(
                list(chain.from_iterable(args for _, args, *_ in items))
            )
        else:
            plain = are_plain(items)
        if plain:
            return Written(VALUES, list(items), [], len(items))
        return self._parcelled(items, style, parcels)

    def _parcelled(self, items: Sequence[Any], style: str, parcels: Parcels) -> Written:
        heads: list[Any] = []
        files: list[int] = []
        inside = beside = 0
        failure: BaseException | None = None
        for item in items:
            try:
                buffers = self._serializer.dumps(tuple(item) if style == "star" else item)
                parcel = parcels.pack(buffers)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the task's caller gets it
                failure = error
                if isinstance(error, SerializationError):
                    error.locate(_NAMES.get(style, {"": "item"}))
                break
            except BaseException:  # Ctrl-C
                Written(PARCELS, heads, files, len(heads)).drop(parcels)
                raise
            head = parcel.head()
            heads.append((head, len(parcel.fds)) if parcel.fds else head)
            files += parcel.fds
            inside += len(head)
            if len(buffers) > 1:
                beside += sum(memoryview(each).nbytes for each in buffers)
            if inside > _ENOUGH or beside > _ENOUGH_BESIDE or len(files) > 50:
                break
        return Written(PARCELS, heads, files, len(heads), failure)
