"""Where a primary publishes its share of the parameters."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from pparallel.interfaces.ordered_server import OrderedServer
from pparallel_reducers.frozen import FrozenParameters, pull_subset
from pparallel_reducers.grad_server.shares import Share
from pparallel_reducers.layout import state_of
from pparallel_reducers.tally import Tally

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module


class Board:
    """One key of an ordered server: a chain of versions, each the successor of the one before.

    Attributes:
        version: of what this member published last.
    """

    def __init__(
        self,
        server: OrderedServer,
        key: str,
        index: int,
        tally: Tally | None,
        *,
        frozen_once: bool = True,
    ) -> None:
        """Publish share *index* under *key*; with a *tally* what leaves is counted there.

        What is frozen is published as a run begins and, unless *frozen_once*, with each version.
        """
        self._server = server
        self._tally = tally
        self._key = key + (f"/{index}" if index else "")
        self._frozen_once = frozen_once
        self._frozen = FrozenParameters(server, self._key)
        self._has: Collection[str] = ()  # the version that was pulled last
        self.version = -1

    def forget(self) -> None:
        """Forget the run before, as one begins."""
        self._has = ()
        self._frozen.clear()

    def begin(self, share: Share, model: Module) -> None:
        """Publish *share* of *model* as a run begins.

        The chain goes on where it ends: the key may be there from an earlier start.
        """
        versions = self._server.versions(self._key)
        self.version = versions[-1] if versions else -1
        self._sent(self._frozen.publish(model, self._frozen_in(share, state_of(model))))
        self.publish(share, model)

    def publish(self, share: Share, model: Module) -> None:
        """Publish *share* of *model* as the next version.

        Raises:
            RuntimeError: somebody else has pushed to this key.
        """
        tensors = state_of(model)
        frozen = self._frozen_in(share, tensors)
        left_out = frozen.keys() - self._frozen.changed_since_publish(model, frozen)
        state = {
            name: each.cpu()
            for name, each in share.targets(tensors).items()
            if name not in left_out
        }
        if not self._server.push(self._key, state, self.version + 1, self.version):
            message = (
                f"the ordered server refused version {self.version + 1} of {self._key!r}:"
                f" somebody else pushed to it and it holds {self._server.versions(self._key)}"
            )
            raise RuntimeError(message)
        self.version += 1
        self._sent(sum(each.nbytes for each in state.values()))

    def has_news(self, version: int | None) -> bool:
        """Return whether something is published, and not as *version*."""
        versions = self._server.versions(self._key)
        return bool(versions) and versions[-1] != version

    def pull(self, share: Share, model: Module) -> int | None:
        """Copy what is published into *model*; return its version, None if there is nothing.

        Raises:
            ValueError: it is of a model that is not like *share*.
        """
        tensors = state_of(model)
        targets, frozen = share.targets(tensors), self._frozen_in(share, tensors)
        found = pull_subset(
            self._server,
            self._key,
            self._has or targets.keys() - frozen.keys(),
            targets,
            lambda names: {name: each for name, each in targets.items() if name in names},
        )
        if found is None:
            return None
        self._has, version = found
        self._frozen.restore(model, frozen, self._has)
        share.settle(targets, tensors)
        return version

    def _frozen_in(self, share: Share, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return those of *tensors* that are published once."""
        if not self._frozen_once:
            return {}
        entries = share.layout.entries
        return {each.name: tensors[each.name].detach() for each in entries if each.kind == "frozen"}

    def _sent(self, nbytes: int) -> None:
        if self._tally is not None:
            self._tally.sent(nbytes)
