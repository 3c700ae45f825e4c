"""Log lines with the name of the member that wrote them."""

from __future__ import annotations

import logging
import sys
from typing import Any

from typing_extensions import override

from pparallel.cli.progress.watch import Lines
from pparallel.runtime import member


class MemberName(logging.Filter):
    """Gives each record the name of the member whose thread wrote it."""

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        current = member.current()
        record.member = "pparallel" if current is None else current.name
        return True


class LineFormatter(logging.Formatter):
    """``[member] message``, with the level from warnings on."""

    def __init__(self) -> None:
        super().__init__("[%(member)s] %(message)s")

    @override
    def formatMessage(self, record: logging.LogRecord) -> str:
        line = super().formatMessage(record)
        if record.levelno < logging.WARNING:
            return line
        mark = f"[{record.__dict__['member']}] "
        return f"{mark}{record.levelname}: {line.removeprefix(mark)}"


class LineHandler(logging.StreamHandler[Any]):
    """Writes records to a stream; that its reader has gone is not told for every one."""

    @override
    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exception(), OSError):
            super().handleError(record)


def configure(lines: Lines) -> None:
    """Write what is logged from INFO on to *lines*."""
    handler = LineHandler(lines)
    handler.addFilter(MemberName())
    handler.setFormatter(LineFormatter())
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
