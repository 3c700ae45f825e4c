"""What the ranks of the launcher's suite run; quickly imported by each process that is one."""

from __future__ import annotations

import faulthandler
import os
import select
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pparallel.errors import ClosedError, PeerLostError
from pparallel.runtime import stopping

if TYPE_CHECKING:
    from pparallel.builder import Runtime
    from pparallel.testing.deaths import Death
    from pparallel.testing.gate import Gate


class Gates:
    """Lets ranks wait for one another, and for the test, whatever they are: by named pipes."""

    def __init__(self, folder: Path, count: int) -> None:
        from pparallel.testing.patience import PATIENCE  # it brings pytest, which no rank needs

        self.folder, self.patience = folder, PATIENCE
        for each in range(count):
            os.mkfifo(folder / str(each))

    def wait(self, number: int) -> None:
        """Wait until the gate is opened; fail if it is not."""
        way = os.open(self.folder / str(number), os.O_RDONLY | os.O_NONBLOCK)
        try:
            opened = select.poll()
            opened.register(way, select.POLLIN)
            assert opened.poll(1000 * self.patience), f"nobody opened gate {number}"
        finally:
            os.close(way)

    def open(self, number: int) -> None:
        """Let whoever waits through; waits until someone does."""
        end = time.monotonic() + self.patience
        while not self._is_opened(number):
            assert time.monotonic() < end, f"nobody waits at gate {number}"
            threading.Event().wait(0.002)

    def _is_opened(self, number: int) -> bool:
        try:
            way = os.open(self.folder / str(number), os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # nobody waits yet
            return False
        os.write(way, b".")
        os.close(way)
        return True


def identify(rank: int, *args: object) -> tuple[object, ...]:
    """Return the arguments."""
    return (rank, *args)


def note(rank: int, folder: Path) -> None:
    """Leave a note for each time that the rank runs."""
    with (folder / str(rank)).open("ab", buffering=0) as file:
        file.write(b".")


def meet(rank: int, last: int, gates: Gates) -> int:
    """Return the rank after those that are greater have returned theirs, or nearly so."""
    if rank < last:
        gates.wait(rank)
    if rank > 0:
        gates.open(rank - 1)
    return rank


def fail_in(rank: int, failing: int) -> None:
    """Raise in one rank, and wait in the others until they are ended."""
    if rank == failing:
        message = f"nothing found in {rank}"
        raise LookupError(message)
    wait_to_be_stopped(rank)


def fail_one_after_the_other(rank: int) -> None:
    """Fail in rank 1, and then in rank 0 because it is to end."""
    if rank == 1:
        message = "this is what went wrong"
        raise LookupError(message)
    wait_to_be_stopped(rank)
    message = "could not end well"
    raise RuntimeError(message)


def wait_to_be_stopped(rank: int) -> None:
    """Wait until this rank is told to stop, or for ever where ranks are ended by force."""
    signal = stopping.current()
    threading.Event().wait() if signal is None else signal.wait()


def follow_and_fail(rank: int, how: str, gates: Gates) -> None:
    """Fail in rank 0 as a consequence of what is about to fail in rank 1."""
    if rank == 0:
        gates.open(0)
        if how == "lost":
            raise PeerLostError("rank 1", "is gone")
        what = "the job"
        raise ClosedError(what, "is ending", consequence=True)
    gates.wait(0)
    threading.Event().wait(0.1)  # meanwhile rank 0 has failed
    message = "this is what went wrong"
    raise LookupError(message)


def exit_in_one(rank: int, how: str) -> None:
    """End rank 1 by what is no ordinary exception."""
    if rank == 1 and how == "interrupt":
        raise KeyboardInterrupt
    if rank == 1:
        sys.exit(int(how))


def pass_gate(rank: int, gates: Gates) -> int:
    """Return the rank once its gate is open."""
    gates.wait(rank)
    return rank


def fail_beside_a_stubborn_one(rank: int, gates: Gates, stubborn: Gate) -> None:
    """Fail in rank 0 once its gate is open, while rank 1 waits whatever it is told."""
    if rank == 1:
        stubborn.pass_through()
        return
    gates.wait(0)
    message = "this is what went wrong"
    raise LookupError(message)


def tell(rank: int, count: int) -> bool:
    """Tell so many things, and return whether anybody is to hear them."""
    found = stopping.upstream()
    if found is None:
        return False
    for number in range(count):
        found((rank, number))
    return True


def die_in_one(rank: int, death: Death) -> None:
    """End the process of rank 1, and wait in the others until they are ended."""
    if rank == 1:
        faulthandler.disable()  # a fork would write its dump where the test's go
        death.call(*death.args)
    wait_to_be_stopped(rank)


def environment_variable(rank: int, name: str) -> str | None:
    """Return a variable of the rank's environment."""
    return os.environ.get(name)


def who(rt: Runtime) -> tuple[str, int]:
    """Return this member's name and rank."""
    return rt.name, rt.rank
