"""Some laws of the transports' suite, for configs of a transport that another one runs whole."""

from __future__ import annotations

from pparallel.testing.transport.alone import AloneTests
from pparallel.testing.transport.calls import CallTests
from pparallel.testing.transport.ownership import OwnershipTests


class ReducedTransportSuite(AloneTests, OwnershipTests):
    """How frames are sent, answered and owned, and their order; subclass it as the whole suite."""

    test_order = CallTests.test_order
