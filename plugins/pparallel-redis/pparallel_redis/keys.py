"""What the keys in Redis are called."""

from __future__ import annotations

import re


class Keys:
    """The names that belong to one namespace.

    All begin with the namespace in braces. So no namespace's names are another's, and a Redis
    Cluster would keep all of them on one node.

    Attributes:
        stem: what the names of pieces begin with.
        about: of what is known of the whole namespace.
        all_hashes: a pattern that fits the hashes of all keys.
        probe: a channel that nobody listens to.
    """

    def __init__(self, namespace: str) -> None:
        self._start = b"{%b}:" % namespace.encode("utf-8", "surrogatepass")
        self.stem = self._start + b"x:"
        self.about = self._start + b"about"
        self.all_hashes = re.sub(rb"([*?\[\]^\\-])", rb"\\\1", self._start + b"k:") + b"*"
        self.probe = self._start + b"p"

    def hash(self, name: bytes) -> bytes:
        """Return where the versions of a key are."""
        return b"%bk:%b" % (self._start, name)

    def name(self, key: bytes) -> bytes:
        """Return whose versions are in a hash."""
        return key[len(self._start) + 2 :]

    def channel(self, name: bytes) -> bytes:
        """Return where it is told that there is a new version."""
        return b"%bn:%b" % (self._start, name)

    def lane(self, name: bytes) -> bytes:
        """Return where the last change of a lane is noted."""
        return b"%bl:%b" % (self._start, name)
