"""cloudpickle with tensors and arrays beside the stream."""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Any

import cloudpickle
from typing_extensions import override

from pparallel.runtime.member import Member
from pparallel_serializers import outofband
from pparallel_serializers.by_value import names
from pparallel_serializers.config import CloudpickleSerializerConfig

if TYPE_CHECKING:
    from pparallel_serializers.outofband import Reduction


class CloudpickleSerializer(outofband.OutOfBandSerializer):
    """Sends functions and classes that a receiver cannot import as cloudpickle does.

    A function or class of ``__main__`` always arrives as a copy, also where the receiver has its
    own, as notebooks expect.
    """

    def __init__(
        self, config: CloudpickleSerializerConfig, *, member: Member | None = None
    ) -> None:
        super().__init__(CloudPickler)
        self.config = config


class CloudPickler(outofband.OutOfBandPickler, cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle's pickler below the one that takes tensors and arrays out of band."""

    @override
    def reducer_override(self, obj: Any) -> Reduction:
        reduce = outofband.reducers.get(type(obj))
        if reduce is not None:
            return reduce(self, obj)
        if isinstance(obj, (FunctionType, type)) and names.is_static(obj.__module__):
            reference = names.by_reference(obj)
            if reference is not None:
                return reference
        return cloudpickle.Pickler.reducer_override(self, obj)

    @override
    def clear(self) -> None:
        self.globals_ref.clear()  # keyed by ids, which the next object may use again
        super().clear()
