"""Broken serializers."""

from __future__ import annotations

import pickle
import struct
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
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


class OtherPickler(PickleSerializer):
    """Takes the class ``Pickler`` of the class that derives from it."""

    Pickler: type[OutOfBandPickler]

    def __init__(self, config: PickleSerializerConfig, *, member: Member | None = None) -> None:
        super().__init__(config)
        self._kind = self.Pickler


class ChangesTensors(OutOfBandPickler):
    """Sends another tensor instead of a tensor; a fault says which."""

    def __init__(self, share: frozenset[str] = frozenset()) -> None:
        super().__init__(share)
        self.kept: list[torch.Tensor] = []

    @override
    def reducer_override(self, obj: Any) -> Reduction:
        if isinstance(obj, torch.Tensor):
            obj = self.changed(obj)
            self.kept.append(obj)
        return super().reducer_override(obj)

    def changed(self, tensor: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class MakesContiguous(OtherPickler):
    class Pickler(ChangesTensors):
        @override
        def changed(self, tensor: torch.Tensor) -> torch.Tensor:
            return tensor.contiguous()


@rejected_by("test_keeps_tensors")
class TestMakesContiguous(SerializerSuite):
    config = backends.config(MakesContiguous)


class DropsRequiresGrad(OtherPickler):
    class Pickler(ChangesTensors):
        @override
        def changed(self, tensor: torch.Tensor) -> torch.Tensor:
            is_parameter = isinstance(tensor, torch.nn.Parameter)
            return tensor if is_parameter else tensor.detach()


@rejected_by("test_keeps_tensors")
class TestDropsRequiresGrad(SerializerSuite):
    config = backends.config(DropsRequiresGrad)


class LosesSharing(OtherPickler):
    """Sends each tensor alone, whatever it shares with others."""

    class Pickler(ChangesTensors):
        @override
        def changed(self, tensor: torch.Tensor) -> torch.Tensor:
            return tensor.detach().clone()


@rejected_by("test_keeps_shared_storage", "test_keeps_views_of_another_dtype")
class TestLosesSharing(SerializerSuite):
    config = backends.config(LosesSharing)


class ForgetsTheConjugateBit(OtherPickler):
    """Sends the memory as it lies, and not that it is to be read as conjugate."""

    class Pickler(ChangesTensors):
        @override
        def changed(self, tensor: torch.Tensor) -> torch.Tensor:
            return tensor.conj() if tensor.is_conj() else tensor


@rejected_by("test_keeps_lazy_conjugates")
class TestForgetsTheConjugateBit(SerializerSuite):
    config = backends.config(ForgetsTheConjugateBit)


class ForgetsAttributes(OtherPickler):
    class Pickler(OutOfBandPickler):
        @override
        def reducer_override(self, obj: Any) -> Reduction:
            reduction = super().reducer_override(obj)
            return reduction[:2] if isinstance(obj, torch.Tensor) else reduction


@rejected_by("test_keeps_attributes")
class TestForgetsAttributes(SerializerSuite):
    config = backends.config(ForgetsAttributes)


class GoesThroughFloat32(OtherPickler):
    """Sends bfloat16 as what numpy has, too; the NaNs are not the same afterwards."""

    class Pickler(OutOfBandPickler):
        @override
        def reducer_override(self, obj: Any) -> Reduction:
            if type(obj) is torch.Tensor and obj.dtype is torch.bfloat16:
                return torch.Tensor.bfloat16, (obj.float(),)
            return super().reducer_override(obj)


@rejected_by("test_keeps_every_dtype")
class TestGoesThroughFloat32(SerializerSuite):
    config = backends.config(GoesThroughFloat32)


class SendsWholeStorages(OtherPickler):
    class Pickler(OutOfBandPickler):
        @override
        def reducer_override(self, obj: Any) -> Reduction:
            reduction = super().reducer_override(obj)
            for sent in self.stores.values():
                sent.use(0, sent.storage.nbytes(), None)
            return reduction


@rejected_by("test_sends_only_the_part_of_a_storage_in_use")
class TestSendsWholeStorages(SerializerSuite):
    config = backends.config(SendsWholeStorages)


class SendsTwins(OtherPickler):
    """Does not know what it has sent before."""

    class Pickler(OutOfBandPickler):
        def __init__(self, share: frozenset[str] = frozenset()) -> None:
            super().__init__(share)
            self.fast = True


@rejected_by("test_keeps_what_is_one_object")
class TestSendsTwins(SerializerSuite):
    config = backends.config(SendsTwins)


class ForgetsTheByteOrder(OtherPickler):
    class Pickler(OutOfBandPickler):
        @override
        def reducer_override(self, obj: Any) -> Reduction:
            if type(obj) is np.ndarray and not obj.dtype.isnative:
                obj = obj.astype(obj.dtype.newbyteorder("="))
            return super().reducer_override(obj)


@rejected_by("test_keeps_arrays")
class TestForgetsTheByteOrder(SerializerSuite):
    config = backends.config(ForgetsTheByteOrder)


class MakesReadOnlyArrays(OtherPickler):
    class Pickler(OutOfBandPickler):
        @override
        def reducer_override(self, obj: Any) -> Reduction:
            reduction = super().reducer_override(obj)
            if type(obj) is np.ndarray and obj.flags.c_contiguous:
                return read_only, reduction
            return reduction


def read_only(rebuild: Any, args: Any) -> Any:
    array = rebuild(*args)
    array.flags.writeable = False
    return array


@rejected_by("test_arrays_are_the_receivers_own")
class TestMakesReadOnlyArrays(SerializerSuite):
    config = backends.config(MakesReadOnlyArrays)


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


class WritesToReadOnlyBuffers(PickleSerializer):
    """Takes what may not be written to for its own."""

    @override
    def loads(self, buffers: Sequence[Buffer]) -> Any:
        return super().loads([_own(each) for each in buffers])


def _own(buffer: Buffer) -> Buffer:
    if not memoryview(buffer).nbytes:
        return buffer
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        alias: Any = torch.frombuffer(buffer, dtype=torch.uint8).numpy()
        return memoryview(alias)


@rejected_by("test_copies_buffers_it_may_not_write_to")
class TestWritesToReadOnlyBuffers(SerializerSuite):
    config = backends.config(WritesToReadOnlyBuffers)


class CopiesWhatItMayKeep(PickleSerializer):
    @override
    def loads(self, buffers: Sequence[Buffer]) -> Any:
        return super().loads([bytes(each) for each in buffers])


@rejected_by("test_builds_over_the_buffers_it_is_given")
class TestCopiesWhatItMayKeep(SerializerSuite):
    config = backends.config(CopiesWhatItMayKeep)


class PutsAllIntoTheStream(PickleSerializer):
    @override
    def dumps(self, obj: object) -> list[Buffer]:
        return [pickle.dumps([bytes(each) for each in super().dumps(obj)])]

    @override
    def loads(self, buffers: Sequence[Buffer]) -> Any:
        return super().loads([bytearray(each) for each in pickle.loads(buffers[0])])


@rejected_by("test_takes_large_data_out_of_band")
class TestPutsAllIntoTheStream(SerializerSuite):
    config = backends.config(PutsAllIntoTheStream)


class LetsErrorsThrough(PickleSerializer):
    """Raises what pickle raises, or the object itself."""

    @override
    def dumps(self, obj: object) -> list[Buffer]:
        try:
            return super().dumps(obj)
        except SerializationError as error:
            raise error.__cause__ or error from None


@rejected_by("test_refuses_what_cannot_be_serialised", "test_names_the_culprit")
class TestLetsErrorsThrough(SerializerSuite):
    config = backends.config(LetsErrorsThrough)


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


class IgnoresLengths(PickleSerializer):
    """Fills up what came short."""

    @override
    def loads(self, buffers: Sequence[Buffer]) -> Any:
        if len(buffers) < 2:
            return super().loads(buffers)
        stream, *rest = map(bytes, buffers)
        try:
            lengths = [n for n, _ in struct.iter_unpack("<Qq", stream[-16 * len(rest) :])]
        except struct.error as error:
            raise SerializationError("stream", error, loading=True) from error
        pairs = zip(rest, lengths, strict=False)
        filled = [each.ljust(min(n, 1 << 24), b"\0") for each, n in pairs]
        return super().loads([stream, *filled])


@rejected_by("test_refuses_damaged_bytes")
class TestIgnoresLengths(SerializerSuite):
    config = backends.config(IgnoresLengths)


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


class ReusesItsBuffer(PickleSerializer):
    """Writes every stream to the same memory."""

    def __init__(self, config: PickleSerializerConfig, *, member: Member | None = None) -> None:
        super().__init__(config)
        self._memory = bytearray(1 << 24)

    @override
    def dumps(self, obj: object) -> list[Buffer]:
        stream, *rest = super().dumps(obj)
        view = memoryview(self._memory)[: memoryview(stream).nbytes]
        view[:] = stream
        return [view, *rest]


@rejected_by("test_earlier_buffers_stay_as_they_are", "test_may_be_used_by_many_threads")
class TestReusesItsBuffer(SerializerSuite):
    config = backends.config(ReusesItsBuffer)


class SpoiltByARefusal(PickleSerializer):
    """Begins the next stream with what was written of the one that failed."""

    def __init__(self, config: PickleSerializerConfig, *, member: Member | None = None) -> None:
        super().__init__(config)
        self._pickler = OutOfBandPickler()

    @override
    def dumps(self, obj: object) -> list[Buffer]:
        try:
            self._pickler.dump(obj)
        except Exception as error:
            raise SerializationError(type(obj).__name__, error) from error
        return self._pickler.take()


@rejected_by("test_a_refusal_spoils_nothing")
class TestSpoiltByARefusal(SerializerSuite):
    config = backends.config(SpoiltByARefusal)


class TurnsTuplesIntoLists(PickleSerializer):
    @override
    def dumps(self, obj: object) -> list[Buffer]:
        return super().dumps(_without_tuples(obj))


def _without_tuples(obj: Any) -> Any:
    if type(obj) in (list, tuple):
        return [_without_tuples(each) for each in obj]
    return obj


@rejected_by("test_keeps_plain_data")
class TestTurnsTuplesIntoLists(SerializerSuite):
    config = backends.config(TurnsTuplesIntoLists)


class TurnsBytearraysIntoBytes(PickleSerializer):
    """Which compare equal."""

    @override
    def dumps(self, obj: object) -> list[Buffer]:
        is_list = type(obj) is list
        return super().dumps([_frozen(each) for each in obj] if is_list else _frozen(obj))  # type: ignore[attr-defined]


def _frozen(obj: object) -> object:
    return bytes(obj) if isinstance(obj, bytearray) else obj


@rejected_by("test_keeps_plain_data")
class TestTurnsBytearraysIntoBytes(SerializerSuite):
    config = backends.config(TurnsBytearraysIntoBytes)


class PromisesCode(PickleSerializer):
    """Declares what it cannot do."""

    features = frozenset({"code", "objects"})


@rejected_by("test_sends_code")
class TestPromisesCode(SerializerSuite):
    config = backends.config(PromisesCode)
