"""TransportSuite: what every transport, and the RPC layer above it, promises."""

from __future__ import annotations

from pparallel.testing.transport.alone import AloneTests
from pparallel.testing.transport.calls import CallTests
from pparallel.testing.transport.faults import FaultTests
from pparallel.testing.transport.groups import GroupTests
from pparallel.testing.transport.ownership import OwnershipTests

__all__ = ["TransportSuite"]


class TransportSuite(AloneTests, CallTests, FaultTests, OwnershipTests, GroupTests):
    """Subclass it, and give a fixture ``config``: the transport's config.

    Members are started by the fixture ``launcher``; override it where members of this transport
    cannot be threads.
    """
