"""What a command writes to standard output, and that nothing else does."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Mapping
from typing import TextIO

logger = logging.getLogger(__name__)


class Output:
    """Standard output of ``pparallel run``: lines of text, or one JSON object at the end.

    With JSON, file descriptor 1 is turned to standard error while the job runs, so that neither
    the target's prints nor a C library's can stand beside the object.
    """

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._once, self._told = threading.Lock(), threading.Lock()
        self._stdout = _claim_stdout() if as_json else sys.stdout

    def done(self, results: Mapping[str, object], seconds: float) -> None:
        """Write what each member returned."""
        if self._as_json:
            plain = {member: _jsonable(member, value) for member, value in results.items()}
            self._object({"results": plain, "seconds": round(seconds, 6)})
            return
        for member, value in results.items():
            self._stdout.write(f"{member}: {_repr(value)}\n")
        self._stdout.write(f"done in {seconds:.2f} s\n")

    def failed(self, kind: str, message: str, member: str | None = None) -> None:
        """Write why there are no results; text goes to standard error, by the caller."""
        if self._as_json:
            error = {"type": kind, "message": message}
            self._object({"error": error if member is None else {**error, "member": member}})

    def interrupted(self) -> None:
        """Write that Ctrl-C ended the job."""
        self.failed("KeyboardInterrupt", "interrupted")
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

    def _object(self, value: object) -> None:
        if self._once.acquire(blocking=False):  # an interrupt may come while the end is written
            self._stdout.write(json.dumps(value) + "\n")


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
