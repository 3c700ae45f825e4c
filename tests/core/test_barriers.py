"""What separates writes into shared memory from one another, by the processor."""

from __future__ import annotations

import pytest

from pparallel.machine import barriers


def test_a_lock_will_do_where_processors_keep_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pparallel.machine.barriers.platform.machine", lambda: "x86_64")
    assert barriers.keeps_order()
    assert not isinstance(barriers.fence(), barriers.SystemBarrier)


def test_the_system_is_asked_where_they_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(barriers, "keeps_order", lambda: False)
    monkeypatch.setattr(barriers, "_call", calls.append)
    fence = barriers.fence()
    assert calls == [barriers._REGISTER]
    for _ in range(2):
        with fence:
            pass
    assert calls == [barriers._REGISTER, *[barriers._GLOBAL_EXPEDITED] * 2]


def test_this_system_can_be_asked() -> None:
    with barriers.SystemBarrier():
        barriers.finish_stores()


def test_what_cannot_be_asked_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pparallel.machine.barriers.platform.machine", lambda: "riscv64")
    assert not barriers.keeps_order()
    with pytest.raises(OSError, match="no system call membarrier is known on riscv64"):
        barriers.fence()
    waited: list[float] = []
    monkeypatch.setattr("pparallel.machine.barriers.time.sleep", waited.append)
    barriers.finish_stores()
    assert waited == [barriers._STORES_LANDED]


def test_an_error_of_the_system_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(barriers, "_GLOBAL_EXPEDITED", 1 << 20)
    fence = barriers.SystemBarrier()
    with pytest.raises(OSError, match="the system call membarrier: Invalid argument"), fence:
        raise AssertionError("it was not separated")
