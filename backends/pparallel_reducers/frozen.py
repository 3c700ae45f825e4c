"""Frozen parameters, which are published once, as a run begins."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakKeyDictionary

from pparallel.interfaces.ordered_server import OrderedServer
from pparallel_reducers.gradients import checksum

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.nn import Module

SMALL = 1 << 18  #: bytes of a tensor that is kept twice, to be compared as a whole

#: of a tensor: its bits if it is small, else their sums and its version, or -1
_Fingerprint: TypeAlias = "tuple[int, Tensor]"


class FrozenParameters:
    """One key of an ordered server: the frozen parameters of the model with which a run begins.

    The versions of the model have what is trained, the buffers, and those frozen parameters that
    were written since: a target network is, by a hook of the optimizer.
    """

    def __init__(self, server: OrderedServer, key: str) -> None:
        self._server = server
        self._key = f"{key}/frozen"
        # Of those that are as published, by model.
        self._fingerprints: WeakKeyDictionary[Module, dict[str, _Fingerprint]] = WeakKeyDictionary()

    def clear(self) -> None:
        """Forget the run before."""
        self._fingerprints.clear()

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
        self._record(model, frozen)
        return sum(each.nbytes for each in state.values())

    def changed_since_publish(self, model: Module, frozen: Mapping[str, Tensor]) -> set[str]:
        """Return which of *frozen*, which are those of *model*, are not as they were published."""
        former = self._fingerprints.get(model, {})
        return {name for name, each in frozen.items() if _has_changed(each, former.get(name))}

    def restore(
        self, model: Module, frozen: Mapping[str, Tensor], version_has: Collection[str]
    ) -> None:
        """Have *frozen*, which are those of *model*, be as published, but for what a version has.

        Raises:
            RuntimeError: they were deleted.
        """
        import torch

        rest = {name: each for name, each in frozen.items() if name not in version_has}
        if not self.changed_since_publish(model, rest):
            return
        into = {
            name: each if name in rest else torch.empty_like(each) for name, each in frozen.items()
        }
        if self._server.pull(self._key, into=into) is None:
            message = f"the ordered server holds no {self._key!r} any more: it was deleted"
            raise RuntimeError(message)
        self._record(model, rest)

    def _record(self, model: Module, frozen: Mapping[str, Tensor]) -> None:
        self._fingerprints[model] = {name: _fingerprint(each) for name, each in frozen.items()}


def pull_subset(
    server: OrderedServer,
    key: Hashable,
    expected: Collection[str],
    allowed: Collection[str],
    make_targets: Callable[[Collection[str]], Mapping[str, Tensor]],
) -> tuple[Collection[str], int] | None:
    """Pull the newest value of *key*; return the names of what it has, and its version.

    Args:
        server: where it is.
        key: whose value.
        expected: names of what it probably has.
        allowed: names of what it may have.
        make_targets: returns the tensors to fill, by the names that it is given.

    Raises:
        ValueError: the value does not fit.
    """
    names, repeated = expected, False
    while True:
        try:
            found = server.pull(key, into=make_targets(names))
        except ValueError:
            held = server.fetch(key, None)
            has = held[0].keys() if held is not None and isinstance(held[0], Mapping) else names
            same = set(names) == set(has)  # also if it is newer than what did not fit
            if (same and repeated) or not set(has) <= set(allowed):
                raise
            names, repeated = has, same
        else:
            return None if found is None else (names, int(str(found[1])))


def _has_changed(tensor: Tensor, former: _Fingerprint | None) -> bool:
    import torch

    # An inference tensor has no version counter; its `detach()` has one.
    values = tensor.detach()
    if former is None or former[1].device != values.device or former[0] != _version(values):
        return True
    return not torch.equal(_content(values), former[1])  # ``tensor.data`` has a version of its own


def _fingerprint(tensor: Tensor) -> _Fingerprint:
    values = tensor.detach()
    return _version(values), _content(values).clone()


def _version(values: Tensor) -> int:
    """Return how often a tensor was written; -1: it is compared as a whole."""
    return -1 if _bits(values) is not None else values._version


def _content(values: Tensor) -> Tensor:
    """Return the bits of a small tensor, and the sums of those of a large one."""
    dtype = _bits(values)
    return checksum(values) if dtype is None else values.view(dtype)


def _bits(values: Tensor) -> torch.dtype | None:
    """Return the integers as which a tensor is compared; None: it is compared by sums."""
    import torch

    if values.nbytes > SMALL or values.is_conj() or values.is_neg():
        return None
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return bits.get(values.dtype.itemsize)
