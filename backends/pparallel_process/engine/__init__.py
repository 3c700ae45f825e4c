"""The pool's own side: what waits, who is sent what, and what comes back."""

from __future__ import annotations

from pparallel_process.engine.engine import Engine

__all__ = ["Engine"]
