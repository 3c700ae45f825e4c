"""The beginning of a child in a fresh interpreter."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NoReturn

from pparallel.runtime.processes import (
    child,
    environment,
    lifeline,
    main_module,
    messages,
    signals,
)
from pparallel.runtime.processes.request import Request


def live(stored: int, parent: int, fds: Sequence[int]) -> NoReturn:
    """Be the child.

    Args:
        stored: the file that holds the request.
        parent: the parent's lifeline.
        fds: the descriptors that the target gets.
    """
    lifeline.tie(parent)
    for each in fds:
        os.set_inheritable(each, False)
    request = Request.loads(messages.fetched(stored))

    def prepare() -> None:
        environment.after_start(request.environment)
        signals.reset()
        main_module.install(request.main)

    child.live(request, fds, prepare)
