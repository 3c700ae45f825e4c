"""Broken serializers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from typing_extensions import Buffer, override

import pparallel_serializers
from broken.harness import Backends, rejected_by
from pparallel.errors import SerializationError
from pparallel.plugin import Backend, hookimpl
from pparallel.runtime.member import Member
from pparallel.testing import SerializerSuite
from pparallel_serializers import PickleSerializerConfig
from pparallel_serializers.outofband import OutOfBandPickler, Reduction
from pparallel_serializers.pickle import PickleSerializer

backends = Backends(PickleSerializerConfig, pparallel_serializers)


@hookimpl
def pparallel_backends() -> Iterable[Backend]:
    return backends.records


class LosesSharing(PickleSerializer):
    """Sends each tensor alone, whatever it shares with others."""

    class Pickler(OutOfBandPickler):
        def __init__(self, share: frozenset[str] = frozenset()) -> None:
            super().__init__(share)
            self.kept: list[torch.Tensor] = []

        @override
        def reducer_override(self, obj: Any) -> Reduction:
            if isinstance(obj, torch.Tensor):
                obj = obj.detach().clone()
                self.kept.append(obj)
            return super().reducer_override(obj)

    def __init__(self, config: PickleSerializerConfig, *, member: Member | None = None) -> None:
        super().__init__(config)
        self._kind = self.Pickler


@rejected_by("test_keeps_shared_storage", "test_keeps_views_of_another_dtype")
class TestLosesSharing(SerializerSuite):
    config = backends.config(LosesSharing)


class RemembersObjects(PickleSerializer):
    """Hands out what it was given, when the bytes come back that it made of it."""

    def __init__(self, config: PickleSerializerConfig, *, member: Member | None = None) -> None:
        super().__init__(config)
        self._sent: dict[bytes, Any] = {}

    @override
    def dumps(self, obj: object) -> list[Buffer]:
        buffers = super().dumps(obj)
        self._sent[bytes(buffers[0])] = obj
        return buffers

    @override
    def loads(self, buffers: Sequence[Buffer]) -> Any:
        known = self._sent.get(bytes(buffers[0])) if buffers else None
        return super().loads(buffers) if known is None else known


@rejected_by("test_tensors_are_the_receivers_own", "test_arrays_are_the_receivers_own")
class TestRemembersObjects(SerializerSuite):
    config = backends.config(RemembersObjects)


class NamesNoCulprit(PickleSerializer):
    @override
    def dumps(self, obj: object) -> list[Buffer]:
        try:
            return super().dumps(obj)
        except SerializationError as error:
            what = type(obj).__name__
            raise SerializationError(what, "it holds something else") from error


@rejected_by("test_names_the_culprit")
class TestNamesNoCulprit(SerializerSuite):
    config = backends.config(NamesNoCulprit)


class AcceptsCutStreams(PickleSerializer):
    """Takes for None what is too short to be anything."""

    @override
    def loads(self, buffers: Sequence[Buffer]) -> Any:
        if len(buffers) == 1 and memoryview(buffers[0]).nbytes < 4:
            return None
        return super().loads(buffers)


@rejected_by("test_refuses_cut_streams", "test_refuses_damaged_bytes")
class TestAcceptsCutStreams(SerializerSuite):
    config = backends.config(AcceptsCutStreams)
