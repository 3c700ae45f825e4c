"""Programs for the seeds run here after a change of their import lines."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from free_ports import free_ports
from moving import MOVING, without_imports
from warm_interpreter import WarmInterpreter

SEEDS = {
    "machin": r"machin\.parallel\.",
    "gluonnlp": r"gluonnlp\.utils\.parallel",
    "torch_xla": r"torch_xla\.distributed\.xla_multiprocessing",
    "jactorch": r"jactorch\.parallel\.comm",
    "torch_multiprocessing": r"torch\.multiprocessing",
}


@pytest.mark.parametrize("seed", SEEDS)
def test_import_lines_alone_differ(seed: str) -> None:
    before, after = ((MOVING / seed / f"{name}.py").read_text() for name in ("before", "after"))
    assert without_imports(before) == without_imports(after)
    assert re.search(rf"^\s*(import|from) {SEEDS[seed]}", before, re.M)
    assert not re.search(rf"^\s*(import|from) {SEEDS[seed]}", after, re.M)
    assert f"pparallel.compat.{seed}" in after


def test_each_program_is_tested() -> None:
    assert {each.name for each in MOVING.iterdir() if each.is_dir()} == set(SEEDS)


#: the processes of a program that asks for fresh interpreters are forks: each would import torch
FORKING = """
import multiprocessing, runpy, sys
fork = multiprocessing.get_context("fork")
multiprocessing.get_context = lambda method: fork
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture
def output_of(tmp_path: Path, warm_torch: WarmInterpreter) -> Callable[..., str]:
    """Run a program, every warning an error, and return what it printed."""

    def run(program: str, *args: str) -> str:
        script = MOVING / program / "after.py"
        if "get_context" in script.read_text():
            done = warm_torch.execute(FORKING, tmp_path, str(script), *args)
        else:
            done = warm_torch.run(script, tmp_path, *args)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
        return done.stdout

    return run


class TestPrograms:
    def test_gluonnlp(self, output_of: Callable[..., str]) -> None:
        printed = output_of("gluonnlp")
        match = re.fullmatch(r"loss ([\d.]+) -> ([\d.]+), largest difference (\S+)\n", printed)
        assert match, printed
        first, last, difference = map(float, match.groups())
        assert last < first
        assert difference < 1e-5

    def test_jactorch(self, output_of: Callable[..., str]) -> None:
        match = re.fullmatch(r"2 slaves, largest difference (\S+)\n", output_of("jactorch"))
        assert match
        assert float(match[1]) < 1e-12

    def test_torch_xla(self, tmp_path: Path, output_of: Callable[..., str]) -> None:
        weights = "[2.0, -3.0, 1.0]"
        assert output_of("torch_xla", str(tmp_path)) == (
            f"process 0: {weights}\nprocess 1: {weights}\nfetched 1 time(s)\n"
        )

    def test_torch_multiprocessing(self, output_of: Callable[..., str]) -> None:
        assert output_of("torch_multiprocessing") == (
            "process 0: loss 0.0000\nprocess 1: loss 0.0000\nlargest error of 8 weights: 0.0000\n"
        )

    def test_machin(self, output_of: Callable[..., str]) -> None:
        ports = map(str, free_ports())
        assert output_of("machin", *ports) == (
            "3 members counted to 6\n"
            "what they trained came to 0.0\n"
            f"{(100 * 100 + 100) * 4 / 2**20:.4f} MB on cpu, cpu\n"
            "five pools added up 1380\n"
        )
