"""Tell the pool what has become of the tasks of a lot."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from time import perf_counter
from typing import Any, NamedTuple

from pparallel.runtime.plain import PLAIN
from pparallel.runtime.pools.board import Spot
from pparallel.runtime.pools.messages import REPORT, Channel
from pparallel.runtime.pools.worker.alarm import Alarm

PERIOD = 0.001  #: seconds between looks at a lot that takes longer than it should
LATE = 0.002  #: seconds after which a lot does: then it is reported piecemeal
_WHOLE = 0.01  #: the same of one of which only all results are wanted
_FILES = 50  #: of results, after which what is there is reported: a message takes 253

Entry = Any  #: a plain value, or ``(head, files)`` of a parcel


class Part(NamedTuple):
    """Tasks that run together.

    Attributes:
        items: what they work on; cut short from the end if one of them takes long.
        values: what they returned so far.
        place: the first task's place in the lot.
    """

    items: list[Any]
    values: list[Any]
    place: int


class Reports:
    """What of the running lot has been done and what has been reported.

    The worker's main thread adds results, and reports at the end of the lot. A second thread
    looks at a lot that takes longer than it should, and then every millisecond, so that a long task
    does not hold up the results of the quick ones before it, nor the tasks that should run
    together with it.
    """

    def __init__(self, channel: Channel, spot: Spot) -> None:
        self._channel = channel
        self._spot = spot
        self._sending = threading.Lock()
        self._alarm = Alarm()
        self._thread: threading.Thread | None = None
        self._number = 0
        self._sent = 0
        self._began = 0.0
        self._has_parcels = False
        self._files = 0
        self._is_prompt = True
        self._is_watched = False
        self._errors: dict[int, tuple[Any, ...]] = {}
        self.entries: list[Entry] = []
        self._together = threading.Lock()
        self._part: Part | None = None

    def begin(self, number: int, size: int, *, prompt: bool = True) -> None:
        """Start a lot of so many tasks; *prompt*: each result is wanted as soon as it is there."""
        self._is_prompt = prompt
        self.entries = []
        self._errors = {}
        self._sent = 0
        self._began = perf_counter()
        self._has_parcels = False
        self._number = number
        self._is_watched = size > 1
        if size > 1:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._report_now_and_then, name="pparallel-reports", daemon=True
                )
                self._thread.start()
            self._alarm.set(LATE if prompt else _WHOLE, PERIOD)

    def run_together(self, call: Callable[[Any], Any], part: Part) -> None:
        """Run tasks at C speed; what one raises ends it."""
        self._part = part
        try:
            part.values.extend(map(call, part.items))
        finally:
            with self._together:
                self._part = None

    def add_parcel(self, head: bytes, files: list[int]) -> None:
        """Add the next task's result, as a parcel."""
        self._has_parcels = True
        self.entries.append((head, files))
        self._files += len(files)  # no fewer than were not reported
        if self._files >= _FILES:
            self._files = 0
            with self._sending:
                self._report_done()

    def fail(self, envelope: tuple[Any, ...]) -> None:
        """Add the next task's failure."""
        self._errors[len(self.entries)] = envelope
        self.entries.append(None)

    def end(self, seconds: float, slowest: tuple[float, int]) -> None:
        """Report what was not reported of the lot, and that it has ended."""
        with self._sending:
            number, self._number, self._is_watched = self._number, 0, False
            entries, errors = self.entries, self._errors
            self._send(number, entries[self._sent :], errors, (seconds, *slowest))
        self.entries, self._errors = [], {}

    def _report_now_and_then(self) -> None:
        seen = (0, 0)
        while True:
            self._alarm.wait()
            with self._sending:  # this lot does not end meanwhile
                number, part = self._number, self._part
                done = len(self.entries) + (0 if part is None else len(part.values))
                if not self._is_watched:
                    self._be_quiet()
                elif perf_counter() - self._began >= LATE:  # else it has begun since the alarm rang
                    is_held_up = seen == (number, done)
                    if self._is_prompt or self._errors or is_held_up:
                        with contextlib.suppress(OSError):  # the pool is gone: the main thread sees
                            self._report_done()
                    if part is not None and is_held_up:
                        self._cut_short(part)
                seen = (number, done)

    def _be_quiet(self) -> None:
        self._alarm.set(0, 0)
        if self._is_watched:  # since a moment ago
            self._alarm.set(LATE, PERIOD)

    def _cut_short(self, part: Part) -> None:
        """Have a task that holds up those to be run together with it be the last of them."""
        with self._together:
            if self._part is part:
                first = len(part.values)
                del part.items[first + 1 :]
                # Those that the main thread had started meanwhile were let go no longer than this.
                count = len(part.values) - first + 1
                self._spot.move(self._number, part.place + first, count)

    def _report_done(self) -> None:
        part = self._part
        done = self.entries[:]
        if part is not None and part.place == len(done):
            more = part.values[:]
            if set(map(type, more)) <= PLAIN:
                done += more
        if len(done) <= self._sent:
            return
        self._send(self._number, done[self._sent :], self._errors, None)
        self._sent = len(done)

    def _send(self, number: int, entries: list[Entry], errors: dict[int, Any], end: Any) -> None:
        first = self._sent
        # The main thread goes on adding to the errors.
        places = range(first, first + len(entries)) if errors else ()
        told = {place: errors[place] for place in places if place in errors}
        coded = self._has_parcels
        files: list[int] = []
        if coded:
            files = [file for each in entries if type(each) is tuple for file in each[1]]
            entries = [(each[0], len(each[1])) if type(each) is tuple else each for each in entries]
        self._channel.send((REPORT, number, first, entries, coded, told or None, end), files)
        self._channel.let_go(files)  # not before they were sent: they are tried again
