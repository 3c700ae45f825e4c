"""Pools and launches in the tasks of pools and in ranks: as deep as needed, but not without end.

A module that opens a pool when it is imported would do so in each worker that imports it.
"""

from __future__ import annotations

from pparallel.errors import PparallelError

DEEPEST = 8  #: pools or launches, each in a task or rank of the one before

_depth = 0  # of this process: 0 for the program itself, 1 for its workers and ranks
_is_loading = False


def depth() -> int:
    """Return how deep this process's workers and ranks would be."""
    return _depth + 1


def enter(depth: int) -> None:
    """Say how deep this process, a worker or a rank, is."""
    global _depth
    _depth = depth


class _Loading:
    def __enter__(self) -> None:
        global _is_loading
        _is_loading = True

    def __exit__(self, *_: object) -> None:
        global _is_loading
        _is_loading = False


LOADING = _Loading()  #: entered while functions or arguments are read: modules may be imported


def check() -> None:
    """Refuse to open a pool where that would have no end.

    Raises:
        PparallelError: a worker is reading a function or an argument, or pools are too deep.
    """
    if _is_loading:
        message = (
            "a module opens a pool while it is imported, and a worker of that pool imports it: open"
            " the pool in a function, or below `if __name__ == '__main__':`"
        )
        raise PparallelError(message)
    if _depth >= DEEPEST:
        message = (
            f"pools are nested {DEEPEST} deep: does a task import a module that opens a pool and"
            " runs the task there?"
        )
        raise PparallelError(message)


def check_launch() -> None:
    """Refuse to launch ranks where that would have no end.

    Raises:
        PparallelError: a rank or worker is reading what it is to run, or launches are too deep.
    """
    if _is_loading:
        message = (
            "a module launches ranks while it is imported, and a rank imports it: launch them in a"
            " function, or below `if __name__ == '__main__':`"
        )
        raise PparallelError(message)
    if _depth >= DEEPEST:
        message = (
            f"launches are nested {DEEPEST} deep: does a rank import a module that launches ranks"
            " which import it?"
        )
        raise PparallelError(message)
