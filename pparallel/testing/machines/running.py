"""How machines are run: the same sequences each time."""

from __future__ import annotations

import contextlib
import logging
import time

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import HypothesisException
from hypothesis.stateful import run_state_machine_as_test

from pparallel.testing.machines.machine import Enough, Machine

logger = logging.getLogger(__name__)

SEQUENCES = 60
STEPS = 50  #: operations of a sequence
SECONDS = 10.0  #: for trying sequences

_LOOKING = 2.0  #: seconds for sequences of one length, when a shorter one is looked for
QUICK = 0.2  #: seconds of a failed sequence: others like it can be tried by the hundred


def run_machine(
    machine: type[Machine],
    *,
    sequences: int = SEQUENCES,
    steps: int = STEPS,
    seconds: float | None = None,
) -> None:
    """Run *machine*; raise what failed, and print the sequence that led to it.

    Each run tries the same sequences. Where one fails quickly a shorter one is looked for.

    Args:
        machine: what :func:`ordered_server_machine` or :func:`pool_machine` returned.
        sequences: how many are tried.
        steps: how many operations each has at most.
        seconds: after which no more are tried, on a computer that is slow or busy; by default 10.
    """
    limit = SECONDS if seconds is None else seconds
    machine.failed_after = 0.0
    machine.begins_until, machine.is_over = time.monotonic() + limit, False
    try:
        _run(machine, sequences, steps, Phase.generate)
    except (Enough, Exception, pytest.fail.Exception) as error:
        if _is_enough(machine, error):
            logger.info("%s tried fewer sequences than %s in %s s", machine, sequences, limit)
            return
        if machine.failed_after < QUICK:
            _find_a_shorter_one(machine, sequences, steps)
        raise


def _is_enough(machine: type[Machine], error: BaseException) -> bool:
    """Return whether *error* says only that the time is over."""
    # A sequence that ends before it begins draws nothing where those before it drew, which
    # Hypothesis calls flaky: it may raise that in place of what ended it.
    is_of_the_end = isinstance(error, Enough | HypothesisException)
    return is_of_the_end and machine.is_over and not machine.failed_after


def _find_a_shorter_one(machine: type[Machine], sequences: int, steps: int) -> None:
    """Raise what fails after few operations, in the shortest form that is found."""
    # What starts short is quick to shorten: of a long sequence it would be tried for minutes.
    for few in (4, 8, 16):
        if few >= steps:
            return
        machine.failed_after, machine.begins_until = 0.0, time.monotonic() + _LOOKING
        with contextlib.suppress(Exception, Enough, pytest.fail.Exception):
            _run(machine, sequences, few, Phase.generate)
        if machine.failed_after:
            _run(machine, sequences, few, Phase.generate, Phase.shrink)


def _run(machine: type[Machine], sequences: int, steps: int, *phases: Phase) -> None:
    options = settings(
        max_examples=sequences,
        stateful_step_count=steps,
        phases=phases,
        deadline=None,
        report_multiple_bugs=False,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=options)
