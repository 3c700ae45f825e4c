"""Members on ``torch_rpc`` that hold their GIL, on machines of their own.

Their agents' answers judge them, which must find a core within the bound: a busy machine has none.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import preloads
import torch_members as members

import pparallel
from pparallel_process import ProcessLauncherConfig


def test_a_member_that_holds_the_gil_is_not_lost(
    tmp_path: Path, rounds: Iterable[random.Random]
) -> None:
    with pparallel.build(ProcessLauncherConfig(preload=preloads.MEMBERS)) as launcher:
        for number, chance in enumerate(rounds):
            folder = tmp_path / str(number)
            folder.mkdir()
            given = (folder, True, 5.0, chance.uniform(5.5, 7.0))
            found = launcher.spawn(members.hold_the_gil, given, 2, start_method="forkserver")
            assert found == [["m0", "m1"]] * 2
