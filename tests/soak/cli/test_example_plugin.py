"""The example plugin's own tests of any sequence of calls, and of deaths at any moment."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterable
from pathlib import Path

from fresh_environment import FreshEnvironment, wheel

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "plugins" / "pparallel-example"


def test_its_sequences_and_deaths(tmp_path: Path, rounds: Iterable[random.Random]) -> None:
    environment = FreshEnvironment(tmp_path / "fresh")
    environment.install(wheel(ROOT, tmp_path / "whole"), wheel(EXAMPLE, tmp_path / "example"))
    shutil.copytree(EXAMPLE / "tests", environment.folder / "tests")
    options = ["-q", "-W", "error", "-p", "no:cacheprovider", "--import-mode=importlib"]
    for _ in rounds:
        chosen = [*options, "-k", "any_sequence or killed", "tests"]
        done = environment.run("python", "-m", "pytest", *chosen)
        assert done.returncode == 0, done.stdout + done.stderr
