"""Running the tasks of a pool's batches in threads of this process.

A :class:`Job` is a batch on its way: it runs its tasks, reports them to the sink, and knows when
all have ended. A :class:`Slot` is a worker; a thread that waits inside a task lends it to another.
A :class:`Backlog` is where a pool's jobs wait for its workers.
"""

from pparallel.runtime.threads.backlog import Backlog
from pparallel.runtime.threads.job import Job, Remains, SharedJob, SingleJob
from pparallel.runtime.threads.slot import Slot
from pparallel.runtime.threads.tracebacks import below

__all__ = ["Backlog", "Job", "Remains", "SharedJob", "SingleJob", "Slot", "below"]
