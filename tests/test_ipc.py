"""The transport between processes of one machine."""

from __future__ import annotations

import pytest
from pparallel_ipc import IpcTransportConfig

from pparallel.testing import TransportSuite


class TestIpcTransport(TransportSuite):
    @pytest.fixture
    def config(self) -> IpcTransportConfig:
        return IpcTransportConfig()
