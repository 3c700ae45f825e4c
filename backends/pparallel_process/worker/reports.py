"""Tell the pool what has become of the tasks of a lot."""

from __future__ import annotations

import contextlib
import os
import threading
from time import sleep
from typing import Any

from pparallel_process.channel import REPORT, Channel
from pparallel_process.encoding import PLAIN

PERIOD = 0.001  #: seconds after which what has been done is reported, whatever runs now

Entry = Any  #: a plain value, or ``(head, files)`` of a parcel


class Reports:
    """What of the running lot has been done and what has been reported.

    The worker's main thread adds results, and reports at the end of the lot. A second thread
    reports every millisecond what was there the last time it looked, so that a long task does not
    hold up the results of the quick ones before it.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._sending = threading.Lock()
        self._parked = threading.Semaphore(0)
        self._is_parked = False
        self._thread: threading.Thread | None = None
        self._number = 0
        self._sent = 0
        self._errors: dict[int, tuple[Any, ...]] = {}
        self.entries: list[Entry] = []
        self.underway: list[Any] = []  #: values of tasks that run together; may be any objects

    def begin(self, number: int, size: int) -> None:
        """Start a lot of so many tasks."""
        self.entries = []
        self.underway = []
        self._errors = {}
        self._sent = 0
        self._number = number
        if size > 1:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._report_now_and_then, name="pparallel-reports", daemon=True
                )
                self._thread.start()
            elif self._is_parked:
                self._is_parked = False
                self._parked.release()

    def add_parcel(self, head: bytes, files: list[int]) -> None:
        """Add the next task's result, as a parcel."""
        self.entries.append((head, files))

    def fail(self, envelope: tuple[Any, ...]) -> None:
        """Add the next task's failure."""
        self._errors[len(self.entries)] = envelope
        self.entries.append(None)

    def end(self, seconds: float, slowest: tuple[float, int]) -> None:
        """Report what was not reported of the lot, and that it has ended."""
        with self._sending:
            number, self._number = self._number, 0
            entries, errors = self.entries, self._errors
            self._send(number, entries[self._sent :], errors, (seconds, *slowest))
        self.entries, self._errors = [], {}

    def _report_now_and_then(self) -> None:
        seen = (0, 0)
        while True:
            sleep(PERIOD)
            number = self._number
            if number == 0 and seen[0] == 0:
                self._is_parked = True
                self._parked.acquire()
                continue
            with self._sending:
                if number == self._number and seen[0] == number and seen[1] > self._sent:
                    with contextlib.suppress(OSError):  # the pool is gone: the main thread sees it
                        self._report_done()
                seen = (self._number, len(self.entries) + len(self.underway))

    def _report_done(self) -> None:
        entries, underway = self.entries, self.underway
        done = entries[:]
        more = underway[:]
        if more and set(map(type, more)) <= PLAIN:
            done += more
        if len(done) <= self._sent:
            return  # tasks that ran together are just being moved from one list to the other
        self._send(self._number, done[self._sent :], self._errors, None)
        self._sent = len(done)

    def _send(self, number: int, entries: list[Entry], errors: dict[int, Any], end: Any) -> None:
        first = self._sent
        coded = tuple in set(map(type, entries))
        files: list[int] = []
        if coded:
            files = [file for each in entries if type(each) is tuple for file in each[1]]
            entries = [(each[0], len(each[1])) if type(each) is tuple else each for each in entries]
        told = {place: each for place, each in errors.items() if place >= first}
        try:
            self._channel.send((REPORT, number, first, entries, coded, told or None, end), files)
        finally:
            for each in files:
                os.close(each)
