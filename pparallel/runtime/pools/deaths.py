"""What is said of a process that has died."""

from __future__ import annotations

import signal
from collections.abc import Iterable

from pparallel.errors import WorkerLostError
from pparallel.runtime.processes import Exit


def explained(pid: int, end: Exit | None, what: str, log: Iterable[str]) -> WorkerLostError:
    """Return the error of what was lost with a process.

    Args:
        pid: its number.
        end: how it ended, if that is known.
        what: who it was and what it was doing: ``it was ...``.
        log: the last lines that it logged.
    """
    details = [what]
    code, peak = (None, None) if end is None else end
    if peak:
        details.append(f"its memory was {peak >> 20:,} MB at most")
    if code == -signal.SIGKILL:
        details.append("SIGKILL may come from the system when memory runs out")
    text = "; ".join(details)
    if lines := [f"  {each}" for each in log]:
        text += "\nthe last it logged:\n" + "\n".join(lines)
    return WorkerLostError(pid, code, text)
