"""Where a primary publishes its share of the parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pparallel.interfaces.ordered_server import OrderedServer
from pparallel_reducers.grad_server.shares import Share
from pparallel_reducers.tally import Tally

if TYPE_CHECKING:
    from torch import Tensor


class Board:
    """One key of an ordered server: a chain of versions, each the successor of the one before.

    Attributes:
        version: of what this member published last.
    """

    def __init__(self, server: OrderedServer, key: str, index: int, tally: Tally | None) -> None:
        """Publish share *index* under *key*; with a *tally* what leaves is counted there."""
        self._server = server
        self._tally = tally
        self._key = key + (f"/{index}" if index else "")
        self.version = -1

    def begin(self) -> None:
        """Go on where the chain ends: the key may be there from an earlier start."""
        versions = self._server.versions(self._key)
        self.version = versions[-1] if versions else -1

    def publish(self, state: Mapping[str, Tensor]) -> None:
        """Publish *state* as the next version.

        Raises:
            RuntimeError: somebody else has pushed to this key.
        """
        if not self._server.push(self._key, dict(state), self.version + 1, self.version):
            message = (
                f"the ordered server refused version {self.version + 1} of {self._key!r}:"
                f" somebody else pushed to it and it holds {self._server.versions(self._key)}"
            )
            raise RuntimeError(message)
        self.version += 1
        if self._tally is not None:
            self._tally.sent(sum(each.nbytes for each in state.values()))

    def has_news(self, version: int | None) -> bool:
        """Return whether something is published, and not as *version*."""
        versions = self._server.versions(self._key)
        return bool(versions) and versions[-1] != version

    def pull(self, share: Share, tensors: Mapping[str, Tensor]) -> int | None:
        """Copy what is published into *tensors*; return its version, None if there is nothing.

        Raises:
            ValueError: it is of a model that is not like *share*.
        """
        targets = share.targets(tensors)
        found = self._server.pull(self._key, into=targets)
        if found is None:
            return None
        share.settle(targets, tensors)
        return int(str(found[1]))
