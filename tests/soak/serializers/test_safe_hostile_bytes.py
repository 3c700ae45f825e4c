"""The serializer ``safe`` against random bytes: it reads them as data, or not."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from hostile_bytes import attempt, distorted, import_beforehand, spoilt

from pparallel.errors import SerializationError
from pparallel_serializers.safe.stream import HEAD, MARK


@pytest.fixture(scope="module", autouse=True)
def _imported_beforehand() -> None:
    import_beforehand()


def test_random_bytes(rounds: Iterable[random.Random]) -> None:
    for rng in rounds:
        buffers = [rng.randbytes(rng.randrange(300)) for _ in range(rng.randrange(4))]
        if buffers and rng.random() < 0.5:
            buffers[0] = HEAD.pack(MARK, *(rng.randrange(5) for _ in range(3))) + buffers[0]
        attempt(buffers)


def test_spoilt_and_distorted_streams(rounds: Iterable[random.Random]) -> None:
    """Right ones whose bytes are changed, and such as are well made and say something else."""
    count = refused = 0
    for rng in rounds:
        count += 1
        found = attempt(rng.choice([spoilt, distorted])(rng))
        refused += isinstance(found, SerializationError)
    assert count < 100 or count // 4 < refused < count, "the bytes are all the same"
