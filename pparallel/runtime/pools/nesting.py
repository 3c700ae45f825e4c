"""Pools and launches in the tasks of pools and in ranks: as deep as needed, but not without end.

A module that opens a pool when it is imported would do so in each worker that imports it, and a
script without a guard in each child of :mod:`multiprocessing` that imports it.
"""

from __future__ import annotations

import sys

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


def check(what: str) -> None:
    """Refuse to start workers or ranks where that would have no end.

    Args:
        what: is about to happen: ``opens a pool``.

    Raises:
        PparallelError: a worker or rank reads a function or its arguments, a child of
            :mod:`multiprocessing` imports the script, or pools and launches are too deep.
    """
    if _is_loading or _is_inheriting():
        message = (
            f"the script or a module {what} while another process imports it, which has no end:"
            ' guard the script with `if __name__ == "__main__":`, or do so in a function'
        )
        raise PparallelError(message)
    if _depth >= DEEPEST:
        message = (
            f"pools and launches are nested {DEEPEST} deep: does a task or a rank import a module"
            " that opens a pool or launches ranks?"
        )
        raise PparallelError(message)


def _is_inheriting() -> bool:
    """Return whether :mod:`multiprocessing` has started this process and has not set it up yet."""
    process = sys.modules.get("multiprocessing.process")
    return process is not None and getattr(process.current_process(), "_inheriting", False)
