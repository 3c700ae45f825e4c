"""Where the primary publishes the parameters."""

from __future__ import annotations

from pparallel.interfaces.ordered_server import OrderedServer
from pparallel_reducers.layout import Flats, Layout


class Board:
    """One key of an ordered server: a chain of versions, each the successor of the one before."""

    def __init__(self, server: OrderedServer, name: str) -> None:
        self._server = server
        self._key = f"reducer/{name}/parameters"
        self.version = -1

    def begin(self) -> None:
        """Go on where the chain ends: the key may be there from an earlier start."""
        versions = self._server.versions(self._key)
        self.version = versions[-1] if versions else -1

    def publish(self, layout: Layout, flats: Flats) -> None:
        """Publish *flats* as the next version.

        Raises:
            RuntimeError: somebody else has pushed to this key.
        """
        value = {"digest": layout.digest, "flats": list(flats.values())}
        if not self._server.push(self._key, value, self.version + 1, self.version):
            message = (
                f"the ordered server refused version {self.version + 1} of {self._key!r}:"
                f" somebody else pushed to it and it holds {self._server.versions(self._key)}"
            )
            raise RuntimeError(message)
        self.version += 1

    def newer(self, layout: Layout, version: int | None) -> tuple[Flats, int] | None:
        """Return what is published and its version, unless that is *version*.

        Raises:
            ValueError: it is of a model that is not like *layout*.
        """
        found = self._server.wait(self._key, version, timeout=0)
        if found is None:
            return None
        value, newest = found
        if value["digest"] != layout.digest:
            message = f"the parameters published under {self._key!r} are of another model"
            raise ValueError(message)
        return {flat.dtype: flat for flat in value["flats"]}, int(str(newest))
