"""The order in which processors see what others write into memory that they share.

On x86 others see what one writes in the order in which it was written; only what it reads may be
older than what it has just written. Other processors, such as ARM's, promise nothing of the kind.
There the system is asked to have every processor finish what it has begun: ``man 2 membarrier``.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import threading
import time
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from typing_extensions import override

_NUMBERS = {"x86_64": 324, "aarch64": 283}  #: of the system call
_GLOBAL, _GLOBAL_EXPEDITED, _REGISTER = 1, 2, 4  #: MEMBARRIER_CMD_...
_STORES_LANDED = 0.002  #: seconds, where there is no such call: far longer than a store takes


class SystemBarrier(AbstractContextManager[None]):
    """What any process that has made one wrote before entering, all such see before what follows.

    Raises:
        OSError: this system has no such call, which Linux has from 4.16 on.
    """

    def __init__(self) -> None:
        _call(_REGISTER)

    @override
    def __enter__(self) -> None:
        _call(_GLOBAL_EXPEDITED)

    @override
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Do nothing: entering is all."""


def keeps_order() -> bool:
    """Return whether others see what this processor writes in the order of its writing."""
    return platform.machine() in ("x86_64", "AMD64", "i386", "i686")


def fence() -> AbstractContextManager[Any]:
    """Return what, entered, separates what was written before from what is read after.

    Where processors do not keep the order, it separates writes from one another, too.

    Raises:
        OSError: it would take a system call that is not there.
    """
    # To take a lock is a locked instruction, which on x86 waits until what was written is out.
    return threading.Lock() if keeps_order() else SystemBarrier()


def finish_stores() -> None:
    """Have every processor finish what it has begun to write; takes up to some milliseconds."""
    try:
        _call(_GLOBAL)
    except OSError:
        time.sleep(_STORES_LANDED)


def _call(command: int) -> None:
    number = _NUMBERS.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"no system call membarrier is known on {platform.machine()}")
    if _libc.syscall(number, command, 0, 0) != 0:
        problem = ctypes.get_errno()
        raise OSError(problem, f"the system call membarrier: {os.strerror(problem)}")


_libc = ctypes.CDLL(None, use_errno=True)
