"""Queues between the threads and processes of one machine."""

from __future__ import annotations

from pparallel.runtime.queues.shared_queue import SharedQueue

__all__ = ["SharedQueue"]
