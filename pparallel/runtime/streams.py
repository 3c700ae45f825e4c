"""Random streams of one member, derived from the job's seed."""

from __future__ import annotations

import hashlib
import random
import secrets
import sys
from functools import cached_property
from typing import TYPE_CHECKING, Any

from typing_extensions import override

if TYPE_CHECKING:
    import numpy
    import torch

SEEDED = ("numpy", "torch")  #: libraries that have a process-wide generator


class Streams:
    """A member's own random streams: the same on each run with the same seed.

    Two members, and two workers of one pool, never share a stream. Without a seed the streams
    differ on each run.

    Attributes:
        seed: 63-bit number from which the streams are made.
    """

    def __init__(self, seed: int | None, *scope: str | int) -> None:
        self._root = seed
        self._scope = scope
        self.seed = secrets.randbits(63) if seed is None else _derived(seed, *scope)

    @override
    def __repr__(self) -> str:
        return f"Streams(seed={self.seed})"

    def sub(self, *scope: str | int) -> Streams:
        """Return the streams of a part of this member, such as one worker of its pool."""
        return Streams(self._root, *self._scope, *scope)

    @cached_property
    def random(self) -> random.Random:
        """A generator of the standard library."""
        return random.Random(self.seed)

    @cached_property
    def numpy(self) -> numpy.random.Generator:
        """A numpy generator."""
        import numpy

        return numpy.random.default_rng(self.seed)

    @cached_property
    def torch(self) -> torch.Generator:
        """A torch generator on the CPU."""
        import torch

        return torch.Generator().manual_seed(self.seed)

    def seed_globals(self) -> None:
        """Seed the process-wide generators of random, and of numpy and torch if imported.

        Only for a member that has its process to itself: threads share these generators.
        """
        random.seed(self.seed)
        for name in SEEDED:
            if name in sys.modules:
                self.seed_library(name)

    def seed_library(self, name: str) -> None:
        """Seed the process-wide generator of ``numpy`` or ``torch``, which is imported."""
        library: Any = sys.modules[name]
        if name == "numpy":
            library.random.seed(self.seed % 2**32)
        else:
            library.manual_seed(self.seed)


def _derived(seed: int, *scope: str | int) -> int:
    text = "/".join(map(str, (seed, *scope)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 1
