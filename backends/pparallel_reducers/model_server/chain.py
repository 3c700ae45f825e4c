"""An ordered chain of the versions of a model, to which all members push."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pparallel.interfaces.ordered_server import OrderedServer
from pparallel.runtime.member import Member
from pparallel_reducers.layout import Flats, Layout

if TYPE_CHECKING:
    from torch import Tensor

_COUNTS = ""  #: in what is pushed; no tensor of a model has this name


class Chain:
    """Two keys of an ordered server: what the model is like, and its parameters and buffers.

    Versions are numbers; each is pushed as the successor of the one before it, or refused. With the
    parameters go the counts of the versions that each member has pushed in this run: they tell
    whether a push was stored whose reply did not come.
    """

    def __init__(self, server: OrderedServer, name: str, member: Member) -> None:
        self._server = server
        self._rank, self._size = member.rank, member.world_size
        self._counts = [0] * self._size  # in the newest version that was seen
        self._layout_key = f"reducer/{name}/layout"
        self._key = f"reducer/{name}/model"

    def begin(self, layout: Layout, flats: Flats) -> int:
        """Go on where the chain ends, with *flats*; return their version.

        Raises:
            RuntimeError: somebody else pushes to these keys.
        """
        described = self._server.versions(self._layout_key)
        number = int(described[-1]) if described else -1
        before = self.newest() if self._server.versions(self._key) else -1
        told = self._server.push(self._layout_key, layout.plain(), number + 1, number)
        self._counts = [0] * self._size
        value = _named(layout, flats, _tensor(self._counts))
        if not (told and self._server.push(self._key, value, before + 1, before)):
            message = f"the ordered server refused {self._key!r}: somebody else pushed to it"
            raise RuntimeError(message)
        return before + 1

    def check(self, layout: Layout) -> None:
        """Refuse *layout* if the chain is of another model.

        Raises:
            ValueError: the first difference is named.
        """
        found = self._server.pull(self._layout_key)
        entries: Sequence[Sequence[object]] = () if found is None else found[0]
        Layout(entries).check(layout)

    @property
    def count(self) -> int:
        """How many versions of this member were stored in this run, when it last asked."""
        return self._counts[self._rank]

    def push(self, layout: Layout, flats: Flats, version: int, before: int) -> bool:
        """Push *flats* as *version* if the newest version is *before*; return whether it was.

        Raises:
            BaseException: what the server raises. The push may have been stored all the same: then
                the next :meth:`pull` raises :attr:`count` by one.
        """
        counts = self._counts.copy()
        counts[self._rank] += 1
        try:
            stored = self._server.push(
                self._key, _named(layout, flats, _tensor(counts)), version, before
            )
        except Exception:
            stored = self._was_stored(layout, counts[self._rank])
            if not stored:
                raise
        else:
            self._counts = counts if stored else self._counts
        return stored

    def _was_stored(self, layout: Layout, count: int) -> bool:
        """Return whether the member's push number *count* is known to be stored."""
        try:
            self.pull(layout)
        except Exception:  # noqa: BLE001 - that of the push is raised
            return False
        return self.count == count

    def newest(self) -> int:
        """Return the newest version.

        Raises:
            RuntimeError: there is none any more.
        """
        versions = self._server.versions(self._key)
        if not versions:
            raise self._gone()
        return int(versions[-1])

    def pull(self, layout: Layout) -> tuple[Flats, int]:
        """Return the newest parameters and buffers, and their version.

        Raises:
            RuntimeError: there are none any more.
        """
        flats, counts = layout.state.empty(), _tensor(self._counts)
        found = self._server.pull(self._key, into=_named(layout, flats, counts))
        if found is None:
            raise self._gone()
        self._counts = [int(each) for each in counts]
        return flats, int(str(found[1]))

    def _gone(self) -> RuntimeError:
        return RuntimeError(f"the ordered server holds no {self._key!r} any more: it was deleted")


def _named(layout: Layout, flats: Flats, counts: Tensor) -> dict[str, Tensor]:
    return {**dict(layout.state.views(flats)), _COUNTS: counts}


def _tensor(counts: Sequence[int]) -> Tensor:
    import torch

    return torch.tensor(counts, dtype=torch.int64)
