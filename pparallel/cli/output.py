"""What a command writes to standard output, and that nothing else does."""

from __future__ import annotations

import errno
import json
import logging
import os
import sys
import threading
from collections.abc import Mapping
from typing import TextIO

from pparallel.cli.progress.summary import Summary

logger = logging.getLogger(__name__)

_GONE = (errno.EPIPE, errno.EIO)  #: the reader of the pipe, or the terminal


class Output:
    """Standard output of ``pparallel run``: lines of text, or one JSON object at the end.

    With JSON, file descriptor 1 is turned to standard error while the job runs, so that neither
    the target's prints nor a C library's can stand beside the object.

    Args:
        as_json: write JSON.
        in_color: standard output is a terminal that is drawn on.
    """

    def __init__(self, *, as_json: bool, in_color: bool = False) -> None:
        self._as_json, self._in_color = as_json, in_color
        self._once, self._told = threading.Lock(), threading.Lock()
        self._stdout = _claim_stdout() if as_json else sys.stdout

    def done(self, results: Mapping[str, object], seconds: float, summary: Summary) -> None:
        """Write what each member returned, and how it went."""
        if self._as_json:
            plain = {member: _jsonable(member, value) for member, value in results.items()}
            members = summary.to_dict()
            self._object({"results": plain, "seconds": round(seconds, 6), "members": members})
            return
        told = {member: _repr(value) for member, value in results.items()}
        if not self._in_color:
            self._write("".join(f"{member}: {value}\n" for member, value in told.items()))
        self._summarise(summary, told)
        self._write(f"done in {seconds:.2f} s\n")

    def failed(
        self, kind: str, message: str, member: str | None = None, summary: Summary | None = None
    ) -> None:
        """Write why there are no results; as text, why is told on standard error by the caller."""
        if self._as_json:
            error = {"type": kind, "message": message}
            told: dict[str, object] = {
                "error": error if member is None else {**error, "member": member}
            }
            self._object(told if summary is None else {**told, "members": summary.to_dict()})
        elif summary is not None:
            self._summarise(summary, {})

    def interrupted(self, summary: Summary | None = None) -> None:
        """Write that Ctrl-C ended the job."""
        if self._as_json:
            self.failed("KeyboardInterrupt", "interrupted")
        elif summary is not None:
            self._summarise(summary, {})
        if self._told.acquire(blocking=False):
            sys.stderr.write("interrupted\n")
        self.flush()

    def flush(self) -> None:
        """Pass on what was written so far."""
        for stream in (sys.stdout, sys.stderr, self._stdout):
            try:
                stream.flush()
            except (OSError, ValueError):  # the reader of a pipe may have gone
                continue

    def _summarise(self, summary: Summary, results: Mapping[str, str]) -> None:
        if self._in_color:
            from pparallel.cli.progress.terminal import Terminal

            self._write("\n".join(Terminal(self._stdout).rendered(summary.renderable(results))))
            self._write("\n")
        else:
            self._write("".join(f"{line}\n" for line in summary.text()))

    def _object(self, value: object) -> None:
        if self._once.acquire(blocking=False):  # an interrupt may come while the end is written
            self._write(json.dumps(value) + "\n")

    def _write(self, text: str) -> None:
        """Write and pass on; that nobody reads it any more is no failure of the job."""
        try:
            self._stdout.write(text)
            self._stdout.flush()
        except OSError as error:
            if error.errno not in _GONE:
                raise
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stdout.fileno())  # what is left is written as Python ends
            os.close(nowhere)


def _claim_stdout() -> TextIO:
    sys.stdout.flush()
    kept = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return kept


def _jsonable(member: str, value: object) -> object:
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except Exception as error:  # noqa: BLE001 - the value is the user's: it may raise anything
        logger.warning("The result of %s is not JSON, its repr is given: %s", member, error)
        return _repr(value)


def _repr(value: object) -> str:
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001 - so may its repr
        return f"<{type(value).__qualname__}: its repr raised {type(error).__name__}>"
