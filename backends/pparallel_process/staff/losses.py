"""What is said of what was lost with a worker."""

from __future__ import annotations

from pparallel.errors import WorkerLostError
from pparallel.runtime.pools import deaths
from pparallel.runtime.processes import Exit
from pparallel_process.accounts.worker import Worker


def explained(worker: Worker, end: Exit | None, what: str) -> WorkerLostError:
    """Return the error of what was lost with *worker*: *what* says how."""
    said = f"it was {worker.name} {what}"
    return deaths.explained(worker.process.pid, end, said, worker.log)
