"""A model that is made once and moved to its device by each rank."""

from __future__ import annotations

import copy
import threading
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from typing_extensions import override

from pparallel.runtime import stopping
from pparallel.runtime.shared_lock import SharedLock

if TYPE_CHECKING:
    import torch

M = TypeVar("M", bound="torch.nn.Module")


class MpModelWrapper(Generic[M]):
    """Holds a model for ranks that each move it to a device of their own, one at a time.

    The machine's memory then holds the weights once, however many ranks there are: forks share
    them with the program, and ranks that start otherwise are sent the wrapper with the function or
    its arguments, and share one copy. A rank that changes them changes its own. Ranks that are
    threads are each given a copy, for they would otherwise move one another's model.

    Source: torch_xla, ``MpModelWrapper``.

    Args:
        model: the model, on the CPU.
    """

    def __init__(self, model: M) -> None:
        self._model = model
        self._lock = SharedLock()
        self._copies: WeakKeyDictionary[Any, M] = WeakKeyDictionary()

    def to(self, device: torch.device | str | int) -> M:
        """Return the model, moved to *device* while no other rank moves it.

        Raises:
            ClosedError: the calling rank was told to stop before its turn came.
        """
        with self._lock.held("MpModelWrapper.to"):
            return self._own().to(device)

    def _own(self) -> M:
        """Return the model itself, or for a thread that shares it with others a copy."""
        if threading.current_thread() is threading.main_thread():
            return self._model
        whose = stopping.current() or threading.current_thread()
        if whose not in self._copies:
            self._copies[whose] = copy.deepcopy(self._model)
        return self._copies[whose]

    @override
    def __getstate__(self) -> dict[str, Any]:
        return {"_model": self._model, "_lock": self._lock}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _copies=WeakKeyDictionary())
