"""``pparallel run``: launch a job and tell how it went."""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Sequence

import typer

import pparallel
from pparallel.builder.loading import member_by_torchrun
from pparallel.cli import logs
from pparallel.cli.interrupts import INTERRUPTED, ending_on_interrupt, leave
from pparallel.cli.output import Output
from pparallel.cli.progress.plain import ReportLines
from pparallel.cli.progress.summary import Summary
from pparallel.cli.progress.tally import Tally
from pparallel.cli.progress.watch import Watch
from pparallel.errors import ConfigError, MissingDependencyError

JOB_FAILED = 1
CONFIG_WRONG = 2


def run_job(
    config: str, target: str | None, overrides: Sequence[str], *, as_json: bool, plain: bool
) -> None:
    """Run the job of file *config* to its end.

    Raises:
        typer.Exit: the job did not succeed; where members still run, the process ends here.
    """
    live = not (plain or as_json) and _can_draw()
    output, tally = Output(as_json=as_json, in_color=live), Tally()
    watch = _display(tally) if live else ReportLines(tally, sys.stderr if as_json else sys.stdout)
    logs.configure(watch.log)

    def last_words() -> None:
        watch.stop(patience=0.02)
        output.interrupted()

    with ending_on_interrupt(last_words):
        code = _Run(output, watch, tally).code(config, target, overrides)
    output.flush()
    if code == INTERRUPTED or (code and threading.active_count() > 1):
        leave(code, logging.shutdown)  # a member's thread cannot be ended in any other way
    if code:
        raise typer.Exit(code)


def _can_draw() -> bool:
    if not sys.stdout.isatty():
        return False
    from rich.console import Console

    console = Console(file=sys.stdout)
    return console.is_terminal and not console.is_dumb_terminal


def _display(tally: Tally) -> Watch:
    from pparallel.cli.progress.display import Display

    return Display(tally, sys.stdout, sys.stderr)


class _Run:
    """One run of one job."""

    def __init__(self, output: Output, watch: Watch, tally: Tally) -> None:
        self._output, self._watch, self._tally = output, watch, tally
        self._names: list[str] = []

    def code(self, path: str, target: str | None, overrides: Sequence[str]) -> int:
        """Run, and return the exit code."""
        began = time.monotonic()
        try:
            config = pparallel.load(path, overrides=overrides)
            alone = member_by_torchrun(config)
            self._names = [alone.name] if alone else config.names
            self._tally.expect(self._names)
            with self._watch as watch:
                results = pparallel.launch(config, target, listener=watch.hear, kinds=watch.kinds)
        except KeyboardInterrupt:
            self._watch.stop(patience=1.0)  # it may have come in the midst of that
            self._output.interrupted(self._summary())
            return INTERRUPTED
        except Exception as error:  # noqa: BLE001 - whatever a member raised ends here
            return self._explain(error)
        seconds = time.monotonic() - began
        by_member = dict(zip(self._names, results, strict=True))
        self._output.done(by_member, seconds, Summary(self._tally))
        return 0

    def _summary(self) -> Summary | None:
        return Summary(self._tally) if self._tally.begun else None

    def _explain(self, error: Exception) -> int:
        member = self._member(error)
        self._output.failed(type(error).__name__, str(error), member, self._summary())
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
