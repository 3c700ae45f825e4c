"""Running the tasks of a pool's batches in threads of this process.

A job is a batch on its way: it runs its tasks, reports them to the sink, and knows when all
have ended. A :class:`Slot` is a worker; a thread that waits inside a task lends it to another.
A :class:`Backlog` is where a pool's jobs wait for its workers.
"""

from typing import TYPE_CHECKING

from pparallel import lazy
from pparallel.runtime.threads.job import SharedJob, SingleJob, below
from pparallel.runtime.threads.slot import Slot

if TYPE_CHECKING:
    from pparallel.runtime.threads.backlog import Backlog

__all__ = ["Backlog", "SharedJob", "SingleJob", "Slot", "below"]

if not TYPE_CHECKING:  # the pool of threads has a queue of its own
    __getattr__, __dir__ = lazy.attributes(__name__, {f"{__name__}.backlog": ("Backlog",)})
