"""Frozen parameters, which are published once, as a run begins."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakKeyDictionary

from pparallel.interfaces.ordered_server import OrderedServer
from pparallel_reducers.gradients import checksum

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

_SMALL = 1 << 18  #: bytes of a tensor that is kept twice, to be compared as a whole

_Mark: TypeAlias = "tuple[int, Tensor]"  #: of a tensor: its version, and what tells its values


class FrozenParameters:
    """One key of an ordered server: the frozen parameters of the model with which a run begins.

    The versions of the model have what is trained, the buffers, and those frozen parameters that
    were written since: a target network is, by a hook of the optimizer.
    """

    def __init__(self, server: OrderedServer, key: str) -> None:
        self._server = server
        self._key = f"{key}/frozen"
        # What each model has of them that is as published.
        self._marks: WeakKeyDictionary[Module, dict[str, _Mark]] = WeakKeyDictionary()

    def forget(self) -> None:
        """Forget the run before."""
        self._marks.clear()

    def publish(self, model: Module, frozen: Mapping[str, Tensor]) -> int:
        """Publish *frozen*, which are those of *model*; return how many bytes they have.

        Raises:
            RuntimeError: somebody else has pushed to this key.
        """
        if not frozen:
            return 0
        versions = self._server.versions(self._key)
        before = versions[-1] if versions else -1
        state = {name: each.detach().cpu() for name, each in frozen.items()}
        if not self._server.push(self._key, state, before + 1, before):
            message = f"the ordered server refused {self._key!r}: somebody else pushed to it"
            raise RuntimeError(message)
        self._note(model, frozen)
        return sum(each.nbytes for each in state.values())

    def written(self, model: Module, frozen: Mapping[str, Tensor]) -> set[str]:
        """Return which of *frozen*, which are those of *model*, are not as they were published."""
        marks = self._marks.get(model, {})
        return {name for name, each in frozen.items() if _is_other(each, marks.get(name))}

    def restore(
        self, model: Module, frozen: Mapping[str, Tensor], version_has: Collection[str]
    ) -> None:
        """Have *frozen*, which are those of *model*, be as published, but for what a version has.

        Raises:
            RuntimeError: they were deleted.
        """
        import torch

        rest = {name: each for name, each in frozen.items() if name not in version_has}
        if not self.written(model, rest):
            return
        into = {
            name: each if name in rest else torch.empty_like(each) for name, each in frozen.items()
        }
        if self._server.pull(self._key, into=into) is None:
            message = f"the ordered server holds no {self._key!r} any more: it was deleted"
            raise RuntimeError(message)
        self._note(model, rest)

    def _note(self, model: Module, frozen: Mapping[str, Tensor]) -> None:
        self._marks[model] = {name: _mark(each) for name, each in frozen.items()}


def pull_some(
    server: OrderedServer,
    key: Hashable,
    names: Collection[str],
    known: Collection[str],
    into: Callable[[Collection[str]], Mapping[str, Tensor]],
) -> tuple[Collection[str], int] | None:
    """Pull the newest value of *key*; return the names of what it has, and its version.

    Args:
        server: where it is.
        key: whose value.
        names: of what it probably has.
        known: of what it may have.
        into: returns the tensors to fill, by the names of which it is told.

    Raises:
        ValueError: the value does not fit.
    """
    while True:
        try:
            found = server.pull(key, into=into(names))
        except ValueError:
            held = server.fetch(key, None)
            has = held[0].keys() if held is not None and isinstance(held[0], Mapping) else names
            if set(names) == set(has) or not set(has) <= set(known):
                raise
            names = has
        else:
            return None if found is None else (names, int(str(found[1])))


def _is_other(tensor: Tensor, mark: _Mark | None) -> bool:
    import torch

    values = tensor.detach()  # of what was made in inference mode there is a version only so
    if mark is None or values._version != mark[0]:
        return True
    return not torch.equal(_content(values), mark[1])  # ``tensor.data`` has a version of its own


def _mark(tensor: Tensor) -> _Mark:
    values = tensor.detach()
    return values._version, _content(values).clone()


def _content(values: Tensor) -> Tensor:
    """Return the bits of a small tensor, and the sums of those of a large one."""
    import torch

    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    dtype = bits.get(values.dtype.itemsize)
    if dtype is None or values.nbytes > _SMALL or values.is_conj() or values.is_neg():
        return checksum(values)
    return values.view(dtype)
