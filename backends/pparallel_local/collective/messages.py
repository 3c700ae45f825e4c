"""Messages between members that are threads: from the sender's tensor into the receiver's."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from typing_extensions import override

from pparallel.interfaces.collective import Work
from pparallel.runtime.collectives import fill, finish

if TYPE_CHECKING:
    from torch import Tensor


class Offer(Work[None]):
    """A message on its way, and its sender's work.

    It is the sender's tensor until either its receiver takes it, in one copy, or its sender waits,
    for whom it is copied.
    """

    def __init__(self, tensor: Tensor) -> None:
        finish(tensor)
        self._lock = threading.Lock()
        self._tensor: Tensor | None = tensor
        self._kept = False

    @override
    def wait(self, timeout: float | None = None) -> None:
        with self._lock:
            if self._tensor is not None and not self._kept:
                self._tensor = self._tensor.clone()
                finish(self._tensor)
                self._kept = True

    @override
    def is_completed(self) -> bool:
        self.wait()  # whoever asks means to change the tensor
        return True

    def give(self, target: Tensor) -> None:
        """Copy what was sent into *target*; once.

        Raises:
            ValueError: it does not fit.
        """
        with self._lock:
            tensor, self._tensor = self._tensor, None
            assert tensor is not None
            fill(target, tensor)
            finish(tensor, target)
