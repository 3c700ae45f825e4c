from __future__ import annotations

import threading

import pytest
from typing_extensions import override

from pparallel.interfaces.transport import Frames, TransportConfig
from pparallel.testing import TransportSuite
from pparallel.testing.transport.alone import Open
from pparallel_local import LocalTransportConfig


class TestLocalTransport(TransportSuite):
    @pytest.fixture
    @override
    def config(self) -> TransportConfig:
        return LocalTransportConfig()

    def test_what_waits_behind_a_sender_that_is_interrupted_arrives(
        self, open_transport: Open
    ) -> None:
        transport, to, _, there, *_ = open_transport()
        take = there.on_message

        def interrupt(sender: str, frames: Frames) -> None:
            there.on_message = take  # type: ignore[method-assign]
            behind = threading.Thread(target=transport.send, args=(to, [b"behind"]))
            behind.start()
            behind.join()
            raise KeyboardInterrupt

        there.on_message = interrupt  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            transport.send(to, [b"first"])
        assert there.has(1) == [[b"behind"]]
