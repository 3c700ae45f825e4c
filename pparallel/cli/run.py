"""``pparallel run``: launch a job and tell how it ended."""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Sequence

import typer

import pparallel
from pparallel.builder import identity
from pparallel.cli import logs
from pparallel.cli.interrupts import INTERRUPTED, ending_on_interrupt, leave
from pparallel.cli.output import Output
from pparallel.errors import ConfigError, MissingDependencyError

JOB_FAILED = 1
CONFIG_WRONG = 2


def run_job(config: str, target: str | None, overrides: Sequence[str], *, as_json: bool) -> None:
    """Run the job of file *config* to its end.

    Raises:
        typer.Exit: the job did not succeed; where members still run, the process ends here.
    """
    output = Output(as_json=as_json)
    logs.configure(sys.stderr if as_json else sys.stdout)
    with ending_on_interrupt(output.interrupted):
        code = _Run(output).code(config, target, overrides)
    output.flush()
    if code == INTERRUPTED or (code and threading.active_count() > 1):
        leave(code, logging.shutdown)  # a member's thread cannot be ended in any other way
    if code:
        raise typer.Exit(code)


class _Run:
    """One run of one job."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._names: list[str] = []

    def code(self, path: str, target: str | None, overrides: Sequence[str]) -> int:
        """Run, and return the exit code."""
        began = time.monotonic()
        try:
            config = pparallel.load(path, overrides=overrides)
            alone = identity.by_torchrun(config)
            self._names = [alone.name] if alone else config.names
            results = pparallel.launch(config, target)
        except KeyboardInterrupt:
            self._output.interrupted()
            return INTERRUPTED
        except Exception as error:  # noqa: BLE001 - whatever a member raised ends here
            return self._explain(error)
        self._output.done(dict(zip(self._names, results, strict=True)), time.monotonic() - began)
        return 0

    def _explain(self, error: Exception) -> int:
        member = self._member(error)
        self._output.failed(type(error).__name__, str(error), member)
        if isinstance(error, ConfigError | MissingDependencyError):
            where = "" if member is None else f"in member {member!r}: "
            sys.stderr.write(f"pparallel: {where}{error}\n")
            return CONFIG_WRONG
        where = "the job" if member is None else f"member {member!r}"
        sys.stderr.write(f"pparallel: {where} failed\n")
        traceback.print_exception(error)
        return JOB_FAILED

    def _member(self, error: BaseException | None) -> str | None:
        """Return the member in which *error* was raised, where the builder noted it."""
        if len(self._names) == 1:
            return self._names[0]
        while error is not None:
            notes = getattr(error, "__notes__", ())
            for name in self._names:
                if f"in member {name!r}" in notes:
                    return name
            error = error.__cause__
        return None
