from __future__ import annotations

import pytest
from typing_extensions import override

from pparallel.interfaces.transport import TransportConfig
from pparallel.testing import TransportSuite
from pparallel_local import LocalTransportConfig


class TestLocalTransport(TransportSuite):
    @pytest.fixture
    @override
    def config(self) -> TransportConfig:
        return LocalTransportConfig()
