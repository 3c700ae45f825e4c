from __future__ import annotations

import pytest
from reduced_transport_suite import ReducedTransportSuite
from typing_extensions import override

from pparallel.interfaces.transport import TransportConfig
from pparallel.testing import TransportSuite
from pparallel_zmq import ZmqTransportConfig


class TestOnTcp(TransportSuite):
    @pytest.fixture
    @override
    def config(self) -> TransportConfig:
        return ZmqTransportConfig(address="tcp://127.0.0.1:0")


class TestOnUnixSockets(ReducedTransportSuite):
    @pytest.fixture
    @override
    def config(self) -> TransportConfig:
        return ZmqTransportConfig(address="ipc")
