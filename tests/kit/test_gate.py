"""The gate's second run: which failures it forgives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

GATE = Path(__file__).resolve().parents[1] / "gate.py"
OPTIONS = """
[tool.pytest.ini_options]
timeout = 2
timeout_method = "signal"
faulthandler_timeout = 4
faulthandler_exit_on_timeout = true
"""
TESTS = """
import ctypes, os, pathlib, time, pytest

SEEN = pathlib.Path(__file__).parent
MOST = {most}

def fails_once(name):
    is_first = not (SEEN / name).exists()
    (SEEN / name).touch()
    assert not is_first, "first failure of " + name

def test_sound(): pass

@pytest.mark.parametrize("number", range(MOST))
def test_flaky(number): fails_once(f"call {{number}} [::]")

def test_that_crashes_once():
    if not (SEEN / "crash").exists() and {crashes}:
        (SEEN / "crash").touch()
        ctypes.CDLL(None).alarm(0)
        ctypes.PyDLL(None).sleep(60)

@pytest.fixture
def broken():
    yield
    assert not {wrong}, "second failure too"

def test_wrong(broken): pass

def test_skipped_the_second_time():
    if {skips}:
        if (SEEN / "skip").exists(): pytest.skip("no verdict")
        (SEEN / "skip").touch()
        assert False
"""


def gate(folder: Path, **given: object) -> subprocess.CompletedProcess[str]:
    (folder / "pyproject.toml").write_text(OPTIONS)
    inner = folder / "part"  # its options are not those of the run
    inner.mkdir()
    (inner / "pyproject.toml").write_text("[tool.pytest.ini_options]\naddopts = '--no-such-option'")
    values = {"most": 1, "crashes": False, "wrong": False, "skips": False} | given
    (inner / "test_it.py").write_text(TESTS.format(**values))
    command = [sys.executable, str(GATE), "--jobs", "1", "--root", str(folder), str(inner)]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)


def test_flaky_tests_and_crashes_are_listed_and_forgiven(tmp_path: Path) -> None:
    done = gate(tmp_path, crashes=True)
    assert done.returncode == 0, done.stdout
    assert "first failure of call 0 [::]" in done.stdout
    flaky = [line.partition("::")[2] for line in done.stdout.splitlines() if "FLAKY" in line]
    assert sorted(flaky) == ["test_flaky[0]", "test_that_crashes_once"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"wrong": True}, "FAILED TWICE part/test_it.py::test_wrong"),
        ({"skips": True}, "FAILED TWICE part/test_it.py::test_skipped_the_second_time"),
        ({"most": 3}, "3 tests are flaky, more than 2"),
        ({"most": 11}, "no second run"),
    ],
)
def test_other_failures_fail_the_run(tmp_path: Path, given: dict[str, object], words: str) -> None:
    done = gate(tmp_path, **given)
    assert done.returncode == 1
    assert words in done.stdout
