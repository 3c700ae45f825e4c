"""Sequences of operations in whatever order."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from pparallel.interfaces.ordered_server import OrderedServer, OrderedServerConfig
from pparallel.testing.ordered_server.base import OrderedServerTests


class SequenceTests(OrderedServerTests):
    """The state machine of :mod:`pparallel.testing.machines`.

    Attributes:
        sequences: how many it tries.
    """

    sequences: ClassVar[int] = 40

    def test_any_sequence_of_operations(
        self, config: OrderedServerConfig, build: Callable[..., OrderedServer]
    ) -> None:
        from pparallel.testing.machines import ordered_server_machine, run_machine

        run_machine(ordered_server_machine(config, build=build), sequences=self.sequences)
