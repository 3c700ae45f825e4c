"""An ordered chain of the versions of a model, to which all members push."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pparallel.interfaces.ordered_server import OrderedServer
from pparallel_reducers.layout import Flats, Layout

if TYPE_CHECKING:
    from torch import Tensor


class Chain:
    """Two keys of an ordered server: what the model is like, and its parameters and buffers.

    Versions are numbers; each is pushed as the successor of the one before it, or refused.
    """

    def __init__(self, server: OrderedServer, name: str) -> None:
        self._server = server
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
        if not (told and self.push(layout, flats, before + 1, before)):
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

    def push(self, layout: Layout, flats: Flats, version: int, before: int) -> bool:
        """Push *flats* as *version* if the newest version is *before*; return whether it was."""
        return self._server.push(self._key, _named(layout, flats), version, before)

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
        flats = layout.state.empty()
        found = self._server.pull(self._key, into=_named(layout, flats))
        if found is None:
            raise self._gone()
        return flats, int(str(found[1]))

    def _gone(self) -> RuntimeError:
        return RuntimeError(f"the ordered server holds no {self._key!r} any more: it was deleted")


def _named(layout: Layout, flats: Flats) -> dict[str, Tensor]:
    return dict(layout.state.views(flats))
