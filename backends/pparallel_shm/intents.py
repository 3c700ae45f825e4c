"""What a member means to do, in words for errors and in a number that members compare."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

V = TypeVar("V")

_MOST = 1 << 12  #: how many are remembered


class Intent(NamedTuple):
    """One operation as one member begins it.

    Attributes:
        digest: a number that is the same in all members that mean the same, and never 0.
        operation: which operation.
        tensors: on what.
    """

    digest: int
    operation: str
    tensors: str


class Intents:
    """Finds the intents of operations, and remembers them: most come again and again."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Intent] = {}
        self._digests: dict[Hashable, int] = {}

    def of(self, operation: str, tensors: Sequence[Tensor] = ()) -> Intent:
        """Return that of an operation in which all members give tensors like these."""
        key = (operation, *[(each.dtype, each.shape) for each in tensors])
        found = self._known.get(key)
        if found is None:
            words = described(tensors)
            found = Intent(digest(f"{operation}\n{words}"), operation, words)
            remember(self._known, key, found)
        return found

    def like(self, tensor: Tensor) -> int:
        """Return a number for shape and dtype of one tensor."""
        key = (tensor.dtype, tensor.shape)
        found = self._digests.get(key)
        if found is None:
            found = digest(described([tensor]))
            remember(self._digests, key, found)
        return found


def digest(text: str) -> int:
    """Return a number for a text, which is 0 for none."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") | 1


def described(tensors: Sequence[Tensor]) -> str:
    """Return dtypes and shapes in words; those of alike neighbours once."""
    parts: list[str] = []
    counts: list[int] = []
    for each in tensors:
        words = f"{each.dtype} of shape {tuple(each.shape)}"
        if parts and parts[-1] == words:
            counts[-1] += 1
        else:
            parts.append(words)
            counts.append(1)
    found = zip(counts, parts, strict=True)
    return ", ".join(words if count == 1 else f"{count} x {words}" for count, words in found)


def difference(ranks: Sequence[int], begun: Sequence[tuple[str, str]]) -> ValueError:
    """Return the error for members that began these operations, on these tensors."""
    operations = [operation for operation, _ in begun]
    usual = _usual(operations)
    for rank, operation in zip(ranks, operations, strict=True):
        if operation != usual:
            return ValueError(
                f"rank {rank} began {operation} where others began {usual}:"
                " all members of a group begin the same operations in the same order"
            )
    tensors = [words for _, words in begun]
    common = _usual(tensors)
    for rank, words in zip(ranks, tensors, strict=True):
        if words != common:
            return ValueError(
                f"{usual}: what rank {rank} gives, {words or 'nothing'}, does not fit what others"
                f" give, {common or 'nothing'}"
            )
    return ValueError(f"{usual} of {common} does not fit in all members")


def _usual(words: Sequence[str]) -> str:
    """Return what most members have, or of several such the first."""
    return Counter(words).most_common(1)[0][0]


def remember(known: dict[Hashable, V], key: Hashable, what: V, most: int = _MOST) -> None:
    """Keep something by its key, and not more than so many."""
    if len(known) >= most:
        known.clear()
    known[key] = what
