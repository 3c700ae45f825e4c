"""What the children of the tests of processes run; imports next to nothing."""

from __future__ import annotations

import os
from collections.abc import Sequence


def run(code: bytes, fds: Sequence[int]) -> None:
    """Run code, which has *fds*, and *say* for the pipe that the test reads."""

    def say(*words: object) -> None:
        os.write(fds[-1], f"{' '.join(map(str, words))}\n".encode())

    exec(code, {"fds": fds, "say": say, "__name__": "child"})
