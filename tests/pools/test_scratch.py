"""Memory that readers share one after the other."""

from __future__ import annotations

import pytest

from pparallel.runtime.scratch import Scratch


def test_each_reader_has_memory_of_its_own() -> None:
    scratch = Scratch()
    with scratch.loan() as one, scratch.loan() as other:
        first, second = one.take(1000), other.take(1000)
        first[:], second[:] = b"1" * 1000, b"2" * 1000
        assert bytes(first) == b"1" * 1000


def test_what_was_let_go_is_used_again() -> None:
    scratch = Scratch()
    with scratch.loan() as loan:
        kept = loan.take(1000).obj
    with scratch.loan() as loan:
        assert loan.take(500).obj is kept
        assert loan.take(2000).nbytes == 2000, "and replaced where it is too small"


def test_what_an_error_may_show_is_not_used_again() -> None:
    scratch = Scratch()
    shown: list[object] = []

    def failing() -> None:
        with scratch.loan() as loan:
            shown.append(loan.take(1000).obj)
            raise ValueError("seen")

    with pytest.raises(ValueError, match="seen"):
        failing()
    with scratch.loan() as loan:
        assert loan.take(1000).obj is not shown[0]
