"""Keys, versions and values that the machine of ordered servers draws."""

from __future__ import annotations

import pickle
from collections.abc import Hashable
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple, TypeVar

from hypothesis import strategies as st

V = TypeVar("V")

#: Few, so that operations meet; they look alike and are all different.
KEYS = st.sampled_from(["k", "k", "k", "k", 1, "1", b"1", ("k", (1,))])
VERSIONS = st.sampled_from([1, 2, 3, 4, "1", b"1", (1, "one"), 1 << 70])

#: bytes beside a value: nothing, what fits into a message, and what may take another way
SIZES = st.sampled_from([0, 1, 300, 5_000, 70_000])

HAS_NUMPY = find_spec("numpy") is not None


class Push(NamedTuple):
    """One push.

    Attributes:
        version: under which it is pushed.
        after: where the key is held, what *prev_version* is instead: the newest version, whatever
            is pushed, that ``itself``, or the ``oldest`` version; ``stale``: the version before it;
            ``any``: it is as it is.
        prev_version: which version is to be the newest.
        size: bytes beside the value, or entries of it.
        is_array: whether the value is an array.
    """

    version: Hashable
    after: Literal["newest", "itself", "oldest", "stale", "any"]
    prev_version: Hashable | None
    size: int
    is_array: bool


PUSHES = st.builds(
    Push,
    version=VERSIONS,
    after=st.sampled_from(["newest", "newest", "itself", "oldest", "stale", "any"]),
    prev_version=st.none() | VERSIONS,
    size=SIZES,
    is_array=st.booleans(),
)


def anew(value: V) -> V:
    """Return an equal object that is no part of *value*."""
    copied: V = pickle.loads(pickle.dumps(value))
    return copied


def value_of(number: int, size: int) -> dict[str, Any]:
    """Return the value with that number, a new one each time."""
    return {"number": number, "parts": [number, None, 0.5], "bytes": bytes([number % 256]) * size}


def are_equal(value: Any, pushed: Any) -> bool:
    """Return whether *value* is what :func:`value_of` or :func:`array_of` made as *pushed*."""
    if isinstance(value, dict) or isinstance(pushed, dict):
        return bool(type(value) is type(pushed) and value == pushed)
    return bool(value.dtype == pushed.dtype and value.tolist() == pushed.tolist())


def spoil(value: Any) -> None:
    """Change a value whose owner may do so."""
    if not isinstance(value, dict):
        value[...] = -1
        return
    value["number"] = -1
    value["parts"].append("changed by its owner")
    del value["bytes"]


def array_of(number: int, size: int) -> Any:
    """Return an array with *size* entries that are all *number*."""
    import numpy as np

    return np.full(size, number)


def unhashable(what: Hashable) -> Any:
    """Return what is neither key nor version."""
    return [what]
