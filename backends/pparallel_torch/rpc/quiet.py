"""Keeps TensorPipe from warning of connections that end because their members leave."""

from __future__ import annotations

import ctypes
import logging
from pathlib import Path

import torch

logger = logging.getLogger(__name__)

_WARNING, _ERROR = 1, 2


class Quiet:
    """torch's log of its C++ parts, without warnings while members leave.

    TensorPipe knows no good-bye: it writes a line to standard error for each connection that the
    other side closes first, several per member at the end of every job. What these lines tell of,
    if it is an accident, is a ``PeerLostError`` as well. Python's warnings, torch's among them, are
    not affected.
    """

    def __init__(self) -> None:
        self._changed: ctypes.c_int | None = None

    def begin(self) -> None:
        """Hold back warnings, unless the user has asked for more or for less; harmless again."""
        level = _level()
        if level is not None and level.value == _WARNING:
            level.value = _ERROR
            self._changed = level

    def end(self) -> None:
        """Let warnings through again."""
        if self._changed is not None:
            self._changed.value = _WARNING
            self._changed = None


def _level() -> ctypes.c_int | None:
    library = Path(torch.__file__).parent / "lib" / "libc10.so"
    try:
        return ctypes.c_int.in_dll(ctypes.CDLL(str(library)), "FLAGS_caffe2_log_level")
    except (OSError, ValueError) as error:  # a torch that is built otherwise: it is for the eye
        logger.debug("torch's log level cannot be reached: %s", error)
        return None
