"""Whether a process lives."""

from __future__ import annotations

import os


def lives(pid: int) -> bool:
    """Return whether the process runs; one that has ended and waits to be reaped does not."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name before it may hold anything, brackets too.
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except ProcessLookupError:
        return False
    except FileNotFoundError:
        return not os.path.isdir("/proc/self") and _answers(pid)
    except OSError:  # without a descriptor there is no telling, and what lives must not be robbed
        return True


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
