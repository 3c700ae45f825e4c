"""Sees which part of a model makes a tensor, and which others compute with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary
from typing_extensions import override

from pparallel.models.tensors import moved_bytes, tensors_in

Origin = dict[str, int]


class Tracer(TorchFunctionMode):
    """Follows tensors through the calls of torch's functions while it is entered.

    Args:
        flops: returns how many operations were done so far.

    Attributes:
        moved: bytes that went from one part to another.
        compute: operations of each part.
        called: the parts that were called.
    """

    def __init__(self, flops: Callable[[], int]) -> None:
        super().__init__()
        self.moved: Counter[tuple[str, str]] = Counter()
        self.compute: Counter[str] = Counter()
        self.called: set[str] = set()
        self._flops, self._counted = flops, 0
        self._running: list[str] = []
        self._origins: MutableMapping[torch.Tensor, Origin] = WeakTensorKeyDictionary()
        self._delivered: MutableMapping[torch.Tensor, set[str]] = WeakTensorKeyDictionary()

    @contextmanager
    def watching(self, name: str, part: torch.nn.Module) -> Iterator[None]:
        """Notice the calls of *part*."""

        def enter(_: object, args: object, kwargs: object) -> None:
            self._settle()
            self._running.append(name)
            self.called.add(name)
            for tensor in _once([*tensors_in(args), *tensors_in(kwargs)]):
                self._deliver(tensor, name)

        def leave(_: object, args: object, kwargs: object, result: object) -> None:
            self._settle()
            self._running.pop()
            for tensor in tensors_in(result):
                self._note(tensor, {name: moved_bytes(tensor)})

        before = part.register_forward_pre_hook(enter, prepend=True, with_kwargs=True)
        after = part.register_forward_hook(leave, with_kwargs=True, always_call=True)
        try:
            yield
        finally:
            before.remove()
            after.remove()

    @override
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        made = list(tensors_in(args[:1] if result is None else result))  # None: done in place
        if made:
            self._computed(_once([*tensors_in(args), *tensors_in(kwargs)]), made)
        return result

    def _computed(self, sources: list[torch.Tensor], made: list[torch.Tensor]) -> None:
        if self._running:
            here = self._running[-1]
            for tensor in sources:
                self._deliver(tensor, here)
            for tensor in made:
                self._note(tensor, {here: moved_bytes(tensor)})
            return
        origin: Counter[str] = Counter()
        for tensor in sources:
            origin.update(self._origins.get(tensor, {}))
        for tensor in made:
            size = moved_bytes(tensor)
            self._note(tensor, {part: min(many, size) for part, many in origin.items()})

    def _deliver(self, tensor: torch.Tensor, part: str) -> None:
        """Count what moves as *part* computes with *tensor* for the first time."""
        delivered = self._delivered.setdefault(tensor, set())
        if part not in delivered:
            delivered.add(part)
            for source, size in self._origins.get(tensor, {}).items():
                if source != part:
                    self.moved[source, part] += size

    def _note(self, tensor: torch.Tensor, origin: Origin) -> None:
        """Note where the present content of *tensor* is from."""
        self._origins[tensor] = origin
        self._delivered.pop(tensor, None)

    def _settle(self) -> None:
        """Ascribe to the part that runs what was computed since the last change."""
        now = self._flops()
        if self._running:
            self.compute[self._running[-1]] += now - self._counted
        self._counted = now


def _once(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return list({id(each): each for each in tensors}.values())
