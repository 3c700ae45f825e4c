"""Copies of much memory, by several threads."""

from __future__ import annotations

import _thread
import ctypes
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pparallel.machine import copying, cpus
from pparallel.machine.copying import copy_all

MB = 1 << 20

sizes = st.lists(st.integers(0, 40), min_size=1, max_size=30)


@pytest.fixture(params=[0, 1, 3])
def helpers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Have so many cores beside the one that copies."""
    count: int = request.param
    have_cores(monkeypatch, count + 1)
    return count


def have_cores(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(cpus, "affinity", lambda: count)
    monkeypatch.setattr(cpus, "are_crowded", lambda: False)


def parts_of(source: np.ndarray, target: np.ndarray, lengths: list[int]) -> list[copying.Part]:
    """Return parts of these lengths, one after another, with a byte between them."""
    found, at = [], 0
    for each in lengths:
        found.append((target.ctypes.data + at, source.ctypes.data + at, each))
        at += each + 1
    return found


@pytest.mark.usefixtures("helpers")
@given(lengths=sizes)
def test_parts_and_nothing_else_is_copied(lengths: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copying, "_LARGE", 16)
        patch.setattr(copying, "_PIECE", 5)
        patch.setattr(copying, "_FEW", 0)
        source = np.arange(sum(lengths) + len(lengths), dtype=np.uint8) | 1
        target = np.zeros_like(source)
        copy_all(parts_of(source, target, lengths))
    expected, at = source.copy(), 0
    for each in lengths:
        at += each + 1
        expected[at - 1] = 0
    assert (target == expected).all()


@pytest.mark.usefixtures("helpers")
def test_much_memory() -> None:
    source = np.random.default_rng(0).integers(0, 255, 33 * MB + 3, np.uint8)
    target = np.zeros_like(source)
    copy_all([(target.ctypes.data, source.ctypes.data, len(source))])
    assert (target == source).all()


def test_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    have_cores(monkeypatch, 3)
    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    source = np.full(9 * MB, 7, np.uint8)
    target = np.zeros_like(source)
    copy_all([(target.ctypes.data, source.ctypes.data, len(source))])
    assert (target == 7).all()


def test_a_helper_that_comes_late_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    late: list[Callable[[], None]] = []
    have_cores(monkeypatch, 2)
    monkeypatch.setattr(
        _thread, "start_new_thread", lambda run, args: late.append(lambda: run(*args))
    )
    source = np.full(9 * MB, 7, np.uint8)
    target = np.zeros_like(source)
    copy_all([(target.ctypes.data, source.ctypes.data, len(source))])
    assert (target == 7).all()
    target[:] = 0
    late[0]()
    assert not target.any(), "it found nothing left to copy"


def test_an_interrupt_waits_for_what_the_helpers_are_at(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = _thread.get_ident()
    moves: list[int] = []
    move = ctypes.memmove

    def interrupted(*piece: int) -> None:
        if _thread.get_ident() == mine:
            raise KeyboardInterrupt
        move(*piece)
        moves.append(piece[0])

    have_cores(monkeypatch, 2)
    monkeypatch.setattr(ctypes, "memmove", interrupted)
    source = np.full(64 * MB, 7, np.uint8)
    target = np.zeros_like(source)
    with pytest.raises(KeyboardInterrupt):
        copy_all([(target.ctypes.data, source.ctypes.data, len(source))])
    done = len(moves)
    target[:] = 0
    assert not target.any()
    assert len(moves) == done


def test_whether_cores_are_crowded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cpus.are_crowded() in (False, True)
    monkeypatch.setattr(cpus, "affinity", lambda: 8)
    for running, crowded in ((1, False), (8, False), (9, True), (30, True)):
        (tmp_path / "loadavg").write_text(f"0.00 0.01 0.05 {running}/467 4376\n")
        assert cpus.are_crowded(tmp_path / "loadavg") == crowded
    assert cpus.are_crowded(tmp_path / "none")


def test_nobody_helps_where_cores_are_crowded(monkeypatch: pytest.MonkeyPatch) -> None:
    have_cores(monkeypatch, 2)
    monkeypatch.setattr(cpus, "are_crowded", lambda: True)
    monkeypatch.setattr(_thread, "start_new_thread", None)
    source = np.full(9 * MB, 7, np.uint8)
    target = np.zeros_like(source)
    copy_all([(target.ctypes.data, source.ctypes.data, len(source))])
    assert (target == 7).all()


def test_idle_cores_are_looked_for_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def are_crowded() -> bool:
        asked.append(True)
        return True

    have_cores(monkeypatch, 2)
    monkeypatch.setattr(cpus, "are_crowded", are_crowded)
    source = np.full(160 * 100_000, 7, np.uint8)
    target = np.zeros_like(source)
    to, at = target.ctypes.data, source.ctypes.data
    copy_all([(to + n, at + n, 100_000) for n in range(0, len(source), 100_000)])
    assert (target == 7).all()
    assert 1 < len(asked) <= 8, "of 160 parts with 16 MB"
