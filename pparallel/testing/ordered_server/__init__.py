"""OrderedServerSuite: what every ordered server promises."""

from __future__ import annotations

from pparallel.testing.ordered_server.forks import ForkTests
from pparallel.testing.ordered_server.order import OrderTests
from pparallel.testing.ordered_server.pushes import PushTests
from pparallel.testing.ordered_server.sequences import SequenceTests
from pparallel.testing.ordered_server.values import ValueTests
from pparallel.testing.ordered_server.waiting import WaitTests

__all__ = ["OrderedServerSuite"]


class OrderedServerSuite(PushTests, ValueTests, WaitTests, OrderTests, SequenceTests, ForkTests):
    """Subclass it, and give a fixture ``config``: the server's config.

    Members are started by the fixture ``launcher``; override it where members that use this server
    cannot be threads.
    """
