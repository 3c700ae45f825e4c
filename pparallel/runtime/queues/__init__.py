"""Queues between the threads and processes of one machine."""

from __future__ import annotations

from pparallel.runtime.queues.several import get_from_any
from pparallel.runtime.queues.shared_queue import SharedQueue

__all__ = ["SharedQueue", "get_from_any"]
