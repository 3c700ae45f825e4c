"""Lets members that use gloo be threads, which jobs may not: a mismatch would end them all.

For tests they start sooner, and see what is patched here.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pparallel.registry import default_registry


@pytest.fixture
def among_threads() -> Iterator[None]:
    backend = default_registry().find("collective", "gloo")
    reach = backend.reach
    object.__setattr__(backend, "reach", reach | {"threads"})
    yield
    object.__setattr__(backend, "reach", reach)
