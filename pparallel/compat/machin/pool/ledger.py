"""The tasks of an engine that are not answered, and which of them died with a worker."""

from __future__ import annotations

from time import monotonic

from pparallel.compat.machin.pool import notes
from pparallel.compat.machin.pool.messages import Task

Key = tuple[int, int]  #: job and chunk of a task

_MISSING = 0.5  #: seconds after which a task that is nowhere is lost


class Entry:
    """A task that is not answered; kept, for what it passes by reference is its sender's to keep.

    Attributes:
        task: the task.
        begun: when it began to be put into the queue.
        was_put: whether the queue has it, or had it.
        was_noted: whether a worker noted that it took it.
        missing: since when it is neither in the queue nor noted; ``None``: it is not known to be.
    """

    __slots__ = ("begun", "missing", "task", "was_noted", "was_put")

    def __init__(self, task: Task) -> None:
        self.task = task
        self.begun = 0.0
        self.was_put = self.was_noted = False
        self.missing: float | None = None


class Ledger:
    """What becomes of the tasks; any thread may enter one, and a single one does all else."""

    def __init__(self) -> None:
        self._notes = notes.Notes()
        self.handle = self._notes.handle
        self._open: dict[Key, Entry] = {}
        self._held: dict[int, list[Key]] = {}
        self._ready: set[int] = set()

    def enter(self, task: Task) -> None:
        """Say that *task* is to be done."""
        self._open[task[0], task[1]] = Entry(task)

    def begin_to_put(self, key: Key) -> bool:
        """Say that a task is about to be put; return whether it is still to be done."""
        entry = self._open.get(key)
        if entry is not None:
            entry.begun = monotonic()
        return entry is not None

    def was_put(self, key: Key) -> None:
        """Say that a task is in the queue."""
        entry = self._open.get(key)
        if entry is not None:
            entry.was_put = True

    def answer(self, key: Key) -> bool:
        """Say that a task is answered; return whether this is the first answer."""
        return self._open.pop(key, None) is not None

    def unanswered(self) -> list[Key]:
        """Return all that is not answered."""
        return list(self._open)

    def read(self) -> bool:
        """Take in what workers have noted; return whether any has started."""
        has_started = False
        for pid, job, chunk in self._notes.read():
            if job == notes.READY:
                self._ready.add(pid)
                has_started = True
                continue
            held = [each for each in self._held.get(pid, ()) if each in self._open]
            self._held[pid] = [*held, (job, chunk)]
            entry = self._open.get((job, chunk))
            if entry is not None:
                entry.was_noted = True
        return has_started

    def was_ready(self, pid: int) -> bool:
        """Return whether a worker asked for a task, or took one, before it ended."""
        return pid in self._ready or pid in self._held

    def bury(self, pid: int) -> list[Key]:
        """Forget a worker that has ended; return the tasks that it took and did not answer."""
        self._ready.discard(pid)
        return [each for each in self._held.pop(pid, ()) if each in self._open]

    def missing(self, since: float, *, queue_is_empty: bool) -> list[Key]:
        """Return tasks that a worker which died at *since* took out of the queue and never noted.

        It may have died between the two, which are some ten microseconds apart. Asked again and
        again: a task is missing when it is nowhere for a while.
        """
        now, lost = monotonic(), []
        for key, entry in list(self._open.items()) if queue_is_empty else ():
            if entry.was_put and not entry.was_noted and entry.begun <= since:
                entry.missing = entry.missing or now
                if now - entry.missing > _MISSING:
                    lost.append(key)
        return lost

    def close(self) -> None:
        """Give the descriptors back."""
        self._notes.close()
