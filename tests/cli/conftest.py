from __future__ import annotations

from collections.abc import Iterator

import pytest
from warm_interpreter import COMMANDS, WarmInterpreter


@pytest.fixture(scope="session")
def warm() -> Iterator[WarmInterpreter]:
    """An interpreter of which each command is a fork."""
    with WarmInterpreter(*COMMANDS) as interpreter:
        yield interpreter
