"""How long an interpreter takes to import pparallel, beside pydantic and a bare interpreter."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from benchmarks.harness import Aim, Contest, Making, Setting, timed

CASES = {
    "pparallel": "import pparallel",
    "pydantic": "import pydantic; pydantic.BaseModel",
    "bare": "pass",
    "pparallel.build": "import pparallel; pparallel.build",
    "pparallel --help": "import sys; sys.argv = ['pparallel', '--help']; "
    "from pparallel.cli import main; main()",
}


@contextmanager
def contest(_setting: Setting) -> Iterator[Contest]:
    """One interpreter for each case, in turn."""
    turns = {
        name: timed(partial(_status, code), int, lambda _, status: status == 0)
        for name, code in CASES.items()
    }
    others = ("pparallel.build", "pparallel --help")
    aims = [Aim("pydantic", 1), *(Aim("pydantic", None, ours=each) for each in others)]
    yield Contest(contenders=turns, aims=aims, rounds=15)


def _status(code: str, _number: int) -> int:
    """Run *code* in a fresh interpreter, and return how it ended."""
    return subprocess.run(
        [sys.executable, "-c", code], check=False, stdout=subprocess.DEVNULL
    ).returncode


CONTESTS: dict[str, Making] = {"import": contest}
