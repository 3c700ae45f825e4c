"""Getting from whichever of several queues has something."""

from __future__ import annotations

import select
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from pparallel.errors import ClosedError, TaskTimeoutError
from pparallel.runtime.queues.ends import Deadline
from pparallel.runtime.queues.shared_queue import SharedQueue


def get_from_any(queues: Sequence[SharedQueue], timeout: float | None = None) -> Any:
    """Return the next object of the first of *queues* that has one, waiting for it if need be.

    Args:
        queues: at least one.
        timeout: seconds; ``None`` for no limit.

    Raises:
        ClosedError: one is closed, or all were shut down and are empty.
        SerializationError: the object cannot be rebuilt here; it is lost.
        TaskTimeoutError: there was none for so long.
    """
    deadline = None
    while True:
        going_on = [each.ends() for each in queues if not each.ended()]
        for each in queues:
            if not each.empty():
                with suppress(TaskTimeoutError):  # another receiver was quicker
                    return each.get(0)
        if not going_on:
            raise ClosedError("each of the queues", "was shut down")
        deadline = deadline or Deadline("getting an object from the queues", timeout)
        going_on[0].wait(select.POLLIN, deadline, others=going_on[1:])
