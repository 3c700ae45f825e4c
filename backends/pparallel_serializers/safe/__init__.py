"""The serializer ``safe``: data only, so that bytes from a stranger can be read.

Nothing here, and nothing that it imports of this package, imports pickle, dill or marshal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typing_extensions import Buffer, override

from pparallel.interfaces.serializer import Serializer
from pparallel.runtime.member import Member
from pparallel_serializers.config import SafeSerializerConfig
from pparallel_serializers.refusals import dump_refusal, load_refusal
from pparallel_serializers.safe.reader import Reader
from pparallel_serializers.safe.stream import Budget
from pparallel_serializers.safe.writer import Writer

__all__ = ["SafeSerializer"]


class SafeSerializer(Serializer):
    """Sends data: what Python's own containers, torch's tensors and numpy's arrays hold.

    It takes None, bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set,
    frozenset, ``OrderedDict``, ``torch.Size``, tensors and parameters, numpy arrays and scalars,
    each of exactly that type, with attributes that are data; keys of any of these types that can
    be hashed. Tensors stay one object where they were one, and share storage; a list that occurs
    twice arrives as two.

    Reading never runs code that the bytes name. ``loads`` refuses what counts more than
    ``max_bytes`` (see :class:`~pparallel_serializers.SafeSerializerConfig`) and allocates at most
    eight times that, whatever the bytes say (text that is ASCII but for one emoji needs six times,
    all else about two): counts, shapes and strides are held against the bytes that are there
    before anything is allocated. A dict or set with many keys that collide, as integers can be made
    to, is refused: it would take long to read.
    """

    runs_code = False

    def __init__(self, config: SafeSerializerConfig, *, member: Member | None = None) -> None:
        self.config = config

    @override
    def dumps(self, obj: object) -> list[Buffer]:
        try:
            return Writer(Budget(self.config.max_bytes), self.config.max_depth).write(obj)
        except Exception as error:
            raise dump_refusal(obj, error) from error

    @override
    def loads(self, buffers: Sequence[Buffer]) -> Any:
        try:
            return Reader(Budget(self.config.max_bytes), self.config.max_depth).read(buffers)
        except Exception as error:
            raise load_refusal(buffers, error) from error
