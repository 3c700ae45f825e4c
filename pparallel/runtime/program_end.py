"""Pools that are open when the program ends are ended before the interpreter is.

A program does not wait for daemon threads. One that frees a tensor just then lets the others run
meanwhile, and when it comes back the interpreter, up to Python 3.13, ends it inside torch, which
aborts the program.
"""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pparallel.interfaces.pool import Pool

logger = logging.getLogger(__name__)

_open: weakref.WeakSet[Pool] = weakref.WeakSet()


def end_with_program(pool: Pool) -> None:
    """Terminate and join *pool* at the end of the program, if it is there still; not in forks."""
    _open.add(pool)


def _end_all() -> None:
    pools = list(_open)
    for each in pools:  # all of them first: they end while one of them is waited for
        _try(each.terminate)
    for each in pools:
        _try(each.join)


def _try(what: Callable[[], object]) -> None:
    try:
        what()
    except Exception:  # the other pools are to end all the same
        logger.exception("A pool could not be ended with the program")


atexit.register(_end_all)
os.register_at_fork(after_in_child=_open.clear)
