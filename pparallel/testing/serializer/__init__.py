"""SerializerSuite: what every serializer promises."""

from __future__ import annotations

from pparallel.testing.serializer.data import DataTests
from pparallel.testing.serializer.objects import ObjectTests
from pparallel.testing.serializer.ownership import OwnershipTests
from pparallel.testing.serializer.refusals import RefusalTests
from pparallel.testing.serializer.samples import make_tensors
from pparallel.testing.serializer.tensors import TensorTests

__all__ = ["SerializerSuite", "make_tensors"]


class SerializerSuite(DataTests, TensorTests, OwnershipTests, ObjectTests, RefusalTests):
    """Checks the guarantees of :class:`~pparallel.interfaces.serializer.Serializer`."""
