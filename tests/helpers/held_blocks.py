"""Tasks that hold what they are sent; their module imports nothing that takes long."""

from __future__ import annotations

import os
from typing import Any

from pparallel.testing.gate import Gate
from pparallel.testing.pool.tasks import KEPT, keep, own_pid


def keep_and_return(gate: Gate, tensor: Any) -> tuple[int, Any]:
    keep(tensor)
    return own_pid(gate), tensor


def sum_of_kept(gate: Gate, _: Any) -> tuple[int, int | None]:
    gate.pass_through()
    return os.getpid(), int(KEPT[0].sum()) if KEPT else None
