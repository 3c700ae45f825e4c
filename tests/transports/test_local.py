"""The transport ``local``."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from member_pairs import NAMES, Answering, made, opened
from typing_extensions import override

from pparallel.errors import PparallelError
from pparallel.interfaces.transport import Frames, Meeting, TransportConfig
from pparallel.testing import TransportSuite
from pparallel.testing.patience import PATIENCE, until
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

    def test_a_member_that_has_left_before_another_saw_all_does_not_fail_that_one(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        meeting = Meeting("one job")
        a, b = (made(LocalTransportConfig(), name, meeting) for name in NAMES)
        at_a = Answering()
        wait, has_left = a._membership.wait_for_all, threading.Event()

        def wait_late(*args: float) -> None:
            has_left.wait(PATIENCE)
            wait(*args)

        monkeypatch.setattr(a._membership, "wait_for_all", wait_late)
        opening = threading.Thread(target=a.open, args=(at_a,))
        opening.start()
        with opened(b):
            pass
        has_left.set()
        opening.join(PATIENCE)
        assert at_a.lost == [("b", "has left")]
        assert a.members() == ["a"]
        a.close()

    def test_a_member_that_has_left_does_not_keep_a_later_one_waiting(self) -> None:
        config = LocalTransportConfig(rendezvous_timeout=PATIENCE)
        meeting = Meeting("a job that one has left")
        a, b = (made(config, name, meeting) for name in NAMES)
        with ThreadPoolExecutor(1) as thread:
            opening = thread.submit(a.open, Answering())
            until(lambda: a._job is not None and "a" in a._job.here, "it has not begun to open")
            a.close()
            with pytest.raises(PparallelError):
                opening.result(PATIENCE)
        with opened(b) as [at_b]:
            assert at_b.lost == [("a", "has left")]

    def test_a_member_may_send_as_soon_as_it_knows_of_another(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        meeting = Meeting("one more job")
        a, b = (made(LocalTransportConfig(), name, meeting) for name in NAMES)
        at_b = Answering()
        meet, wait, is_first = a.meet, a._membership.wait_for_all, threading.Event()

        def meet_and_send(name: str) -> None:
            meet(name)
            a.send(name, [b"first"])

        def wait_first(*args: float) -> None:
            is_first.set()
            wait(*args)

        monkeypatch.setattr(a, "meet", meet_and_send)
        monkeypatch.setattr(a._membership, "wait_for_all", wait_first)
        opening = threading.Thread(target=a.open, args=(Answering(),))
        opening.start()
        assert is_first.wait(PATIENCE)
        b.open(at_b)
        opening.join(PATIENCE)
        assert at_b.has(1) == [[b"first"]]
        b.close()
        a.close()
