"""Pickle with tensors beside the stream that also sends code; the default serializer."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from typing_extensions import Buffer, override

from pparallel.interfaces.serializer import Carried
from pparallel.runtime.member import Member
from pparallel_serializers.by_value import filling, names, units
from pparallel_serializers.by_value.pickler import CodePickler
from pparallel_serializers.config import DillSerializerConfig
from pparallel_serializers.outofband import OutOfBandPickler, OutOfBandSerializer


class DillSerializer(OutOfBandSerializer):
    """Sends also lambdas, local functions, closures and what lives in ``__main__``.

    Importable code goes by name, and so does a function or class that has a name in ``__main__``:
    the names that it uses there go before it, and the receiver takes those that it lacks. Code
    without a name is sent by value, all in one stream: an object used inside a closure and outside
    of it is one object again. A receiver builds a class without a name once: later objects of it
    have the same class.
    """

    def __init__(
        self,
        config: DillSerializerConfig,
        *,
        member: Member | None = None,
        carries: Carried = "all",
    ) -> None:
        share = {"shared"} if config.keep_shared else set()
        super().__init__(CodePickler, share if config.copy_tensor else {"cpu", "cuda"})
        self.config, self._dill, self._carries = config, config, carries

    @override
    def carrying(self, names: Carried) -> DillSerializer:
        made = type(self)(self._dill, carries=names)
        made._shared = self._shared
        made._pass_on(self._share)
        return made

    def mark_static_module(self, module: ModuleType | str) -> None:
        """Have all that *module* defines go by reference, in every serializer of this process."""
        names.mark_static_module(module)

    @override
    def _read(self, buffers: Sequence[Buffer]) -> Any:
        if memoryview(buffers[0])[:1] == units.MARK:
            buffers = filling.filled(memoryview(buffers[0])[1:], buffers[1:])
        return super()._read(buffers)

    @override
    def _pickler(self) -> OutOfBandPickler:
        made = CodePickler(self._share)
        made.recurse, made.carries = self._dill.recurse, self._carries
        return made
