"""A copy of all that a step changes, with which it is undone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


class StepSnapshot:
    """Tensors of a model with their gradients, and all that its optimizer and scheduler keep.

    These are undone in place, so that what refers to them goes on doing so: tensors, the attributes
    of torch's classes, and dictionaries, lists and sets, however nested. Objects of other classes
    are left as they are. The copies of tensors are written to again by each :meth:`record`, and
    take the memory of what is recorded once more.
    """

    def __init__(self) -> None:
        self._copies: dict[tuple[int, str], Tensor] = {}  # by whose they are, and what of it
        self._former = self._copies
        self._tensors: dict[int, tuple[Tensor, Tensor]] = {}  # by id: a tensor and its copy
        self._gradients: list[tuple[Tensor, Tensor]] = []
        self._containers: dict[int, tuple[Any, Any]] = {}  # by id: as they are, and were

    def record(self, tensors: Iterable[Tensor], *owners: object) -> None:
        """Record *tensors* of the model, and its optimizer and scheduler, as they are now."""
        import torch

        self.forget()
        self._former, self._copies = self._copies, {}
        with torch.no_grad():
            for each in tensors:
                self._record_tensor(each)
            for owner in owners:
                self._record(getattr(owner, "__dict__", None))
        self._former = {}

    def restore(self) -> None:
        """Make all as it was recorded."""
        import torch

        for container, before in self._containers.values():
            _refill(container, before)
        with torch.no_grad():
            for tensor, copy in self._tensors.values():
                tensor.copy_(copy)
        for tensor, gradient in self._gradients:
            tensor.grad = gradient

    def forget(self) -> None:
        """Refer to nothing that was recorded any more; the copies stay, to be written to again."""
        self._tensors, self._gradients, self._containers = {}, [], {}

    def _record(self, value: object) -> None:
        from torch import Tensor
        from torch.optim import Optimizer
        from torch.optim.lr_scheduler import LRScheduler

        if isinstance(value, Tensor):
            self._record_tensor(value)
        elif isinstance(value, Optimizer | LRScheduler):
            self._record(vars(value))
        elif isinstance(value, tuple):
            for each in value:
                self._record(each)
        elif isinstance(value, dict | list | set) and id(value) not in self._containers:
            self._containers[id(value)] = value, value.copy()
            for each in value.values() if isinstance(value, dict) else value:
                self._record(each)

    def _record_tensor(self, tensor: Tensor) -> None:
        if id(tensor) in self._tensors:
            return
        self._copy(tensor, (id(tensor), "value"))
        if tensor.is_leaf and tensor.grad is not None:
            self._gradients.append((tensor, tensor.grad))
            self._copy(tensor.grad, (id(tensor), "gradient"))

    def _copy(self, tensor: Tensor, key: tuple[int, str]) -> None:
        copy = self._former.get(key)
        if copy is None or not _is_like(copy, tensor):
            copy = tensor.detach().clone()
        else:
            copy.copy_(tensor)
        self._copies[key] = copy
        self._tensors[id(tensor)] = tensor, copy


def _refill(container: Any, before: Any) -> None:
    container.clear()
    if isinstance(container, dict):
        for key, value in before.items():
            container[key] = value
    elif isinstance(container, list):
        container.extend(before)
    else:
        container.update(before)


def _is_like(copy: Tensor, tensor: Tensor) -> bool:
    """Return whether *copy* is dense and may be written to again."""
    import torch

    forms = [(each.layout, each.dtype, each.shape, each.device) for each in (copy, tensor)]
    return forms[0] == forms[1] and copy.layout is torch.strided
