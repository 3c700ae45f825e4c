"""Members of tests that call one another."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pparallel
from pparallel import Runtime
from pparallel.testing.patience import PATIENCE


def launch(
    target: Callable[[Runtime], Any], size: int = 2, backend: str = "local", **transport: Any
) -> list[Any]:
    """Run *target* in members that are threads."""
    raw = {
        "members": [f"m{rank}" for rank in range(size)],
        "launcher": {"backend": "thread"},
        "transport": {"backend": backend, "timeout": PATIENCE, **transport},
    }
    return pparallel.launch(raw, target)


def between(program: Callable[[Runtime, Any], Any]) -> Callable[[Runtime], Any]:
    """Return what runs *program* in the first member, while the others wait."""

    def run(rt: Runtime) -> Any:
        group = rt.group()
        group.barrier(PATIENCE)
        try:
            return program(rt, group) if rt.rank == 0 else None
        finally:
            group.barrier(PATIENCE)

    return run


class Gates:
    """Events that functions of other members wait for."""

    opened = threading.Event()


def wait_at_gate() -> bool:
    return Gates.opened.wait(PATIENCE)


def add(a: int, b: int) -> int:
    return a + b


def add_late(a: int, b: int) -> int:
    time.sleep(0.05)
    return a + b
