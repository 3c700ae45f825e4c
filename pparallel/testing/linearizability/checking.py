"""The check of a history: one key after the other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable

from pparallel.testing.linearizability.operation import Operation
from pparallel.testing.linearizability.search import Stuck, find_order

LIMIT = 200_000  #: beginnings of orders that are tried for one key: some seconds


def check(operations: Iterable[Operation], depth: int, limit: int = LIMIT) -> None:
    """Refuse a history that no server could have produced that does one thing at a time.

    An operation whose result is unknown may have taken effect at any moment after its call, or
    never. A wait that ended with its time-out says nothing of what was held.

    Args:
        operations: those of all members, in any order.
        depth: how many versions the server keeps of a key.
        limit: how many beginnings of orders are tried for one key before it is given up. Orders
            multiply with the operations that are under way at once and with unknown results.

    Raises:
        AssertionError: with the longest run of operations that can be explained, and those of
            which one should have come next and none could.
        RuntimeError: the limit was reached, and neither is known.
    """
    by_key: defaultdict[Hashable, list[Operation]] = defaultdict(list)
    for each in operations:
        by_key[each.key].append(each)
    for key, history in by_key.items():
        if stuck := find_order(history, depth, limit):
            raise AssertionError(_explained(key, stuck))


def _explained(key: Hashable, stuck: Stuck) -> str:
    explained = "".join(f"\n  {each}" for each in stuck.explained)
    following = "".join(f"\n  {each}" for each in stuck.next)
    return (
        f"the history of key {key!r} is not linearizable. After, in some order,{explained}\n"
        f"it holds {stuck.state!r}, and none of these can come next:{following}"
    )
