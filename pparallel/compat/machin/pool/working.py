"""What runs in a worker: the loop that takes tasks and answers them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from pparallel.compat.machin import pickle
from pparallel.compat.machin.pool import notes
from pparallel.compat.machin.pool.messages import Answer, Task, seal_answer
from pparallel.errors import ClosedError
from pparallel.runtime.processes import main_module

Get = Callable[[], Task | None]
Put = Callable[[Answer], object]
Work = Callable[..., object]  #: ``BasePool.worker``, or what overrides it


class Asking:
    """Takes tasks from a queue for one worker.

    Args:
        get: takes the next task.
        handle: where a worker that is a process notes that it is ready.

    Attributes:
        last: job and chunk of the task taken last; ``None``: the worker has not asked for any.
    """

    def __init__(self, get: Get, handle: notes.Handle) -> None:
        self._get, self._handle = get, handle
        self.last: tuple[int, int] | None = None

    def __call__(self) -> Task | None:
        """Return the next task; ``None``: there will be none."""
        if self.last is None:
            notes.note(self._handle, notes.READY)
            self.last = notes.READY, 0
        task = self._get()
        if task is not None:
            self.last = task[0], task[1]
        return task


class Answering:
    """Puts the answers of a worker that is a process; there is none that it cannot put."""

    def __init__(self, put: Callable[[Any], object]) -> None:
        self._put = put

    def __call__(self, answer: Answer) -> None:
        """Put *answer*."""
        self._put(seal_answer(answer))


def check_maxtasks(maxtasks: int | None) -> None:
    """Refuse what is no number of tasks.

    Raises:
        ValueError: it is neither ``None`` nor a number from 1.
    """
    if maxtasks is not None and not (isinstance(maxtasks, int) and maxtasks >= 1):
        message = f"a worker is replaced after 1 task or more, or never (None), not {maxtasks!r}"
        raise ValueError(message)


def run_tasks(
    get: Get,
    put: Put,
    initializer: Callable[..., object] | None,
    initargs: Iterable[Any],
    maxtasks: int | None,
) -> None:
    """Take tasks and answer them, until there is ``None`` or *maxtasks* were run."""
    check_maxtasks(maxtasks)
    if initializer is not None:
        initializer(*initargs)
    for _ in itertools.count() if maxtasks is None else range(maxtasks):
        try:
            task = get()
        except ClosedError:  # the pool was terminated
            return
        if task is None:
            return
        _answer(task, put)
        del task  # nothing of a task is kept while there is no other


def serve(work: Work, get: Asking, put: Put, settings: Sequence[Any]) -> bool:
    """Call ``work(get, put, *settings)``; what escapes it fails the task that it had last.

    Returns:
        Whether it returned, or found the pool ended.
    """
    try:
        work(get, put, *settings)
    except ClosedError:
        return True
    except BaseException as error:  # noqa: BLE001 - told to those who wait
        _tell(put, get.last or (None, os.getpid()), error)
        return False
    return True


def main(payload: bytes, _: Sequence[int]) -> None:
    """Be a worker that is a process.

    Args:
        payload: what makes it one: see :meth:`WorkerProcess.start`.
    """
    main_module.follows_caller = True
    put, data = pickle.loads(payload)
    try:
        work, get, *settings = pickle.loads(data)
    except BaseException as error:
        _tell(put, (None, os.getpid()), error)
        raise SystemExit(1) from error
    if not serve(work, get, put, settings):
        raise SystemExit(1)


def _answer(task: Task, put: Put) -> None:
    job, chunk, func, args, kwds = task
    outcome: tuple[bool, Any]
    try:
        outcome = True, func(*args, **kwds)
    except BaseException as error:  # noqa: BLE001 - a task that exits fails, and ends nothing else
        outcome = False, error
    try:
        put((job, chunk, outcome))
    except ClosedError:
        raise
    except Exception as error:  # noqa: BLE001 - a queue of the user's own does not take it
        put((job, chunk, (False, error)))


def _tell(put: Put, task: tuple[int | None, int], error: BaseException) -> None:
    with suppress(ClosedError):  # the pool has ended
        put((*task, (False, error)))
