"""Garbage that is collected while a member asks whether a thread has entered a function."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from random import Random

import pytest

from pparallel.testing.patience import PATIENCE

BEGINNING = """
import gc, sys, threading, time
from pparallel.runtime.user_code import has_entered, run

class Cycle:
    def __init__(self):
        self.me = self
    def __del__(self):
        time.sleep(0)  # has another thread run

ended = threading.Event()
sys.setswitchinterval(1e-5)
gc.set_threshold(20)
"""
THREADS_START = """
def starts_threads():
    while not ended.is_set():
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()

waiting = [threading.Thread(target=ended.wait) for _ in range(30)]
asked = [threading.Thread(target=starts_threads) for _ in range(2)]
"""
FUNCTIONS_ARE_CALLED = """
import random

def function(size):  # the frames of each are of another size
    names = " = ".join(f"v{number}" for number in range(size))
    found = {"functions": functions, "choose": random.choice}
    exec(f"def f(n):\\n {names} = object()\\n return choose(functions)(n - 1) if n else 0", found)
    return found["f"]

def calls_always():
    while not ended.is_set():
        run(random.choice(functions), (random.randrange(20),))

functions = []
functions += map(function, range(1, 40, 3))
waiting = []
asked = [threading.Thread(target=calls_always) for _ in range(3)]
"""
END = """
for each in [*waiting, *asked]:
    each.start()
gc.set_threshold(5)
until = time.monotonic() + 2.0
while time.monotonic() < until:
    Cycle()
    has_entered(asked[0].ident)
ended.set()
for each in [*waiting, *asked]:
    each.join()
"""


@pytest.mark.parametrize("meanwhile", [THREADS_START, FUNCTIONS_ARE_CALLED])
def test_garbage_is_collected_while_it_is_asked(rounds: Iterable[Random], meanwhile: str) -> None:
    """CPython 3.11 let nothing run any more, or found other objects in the place of frames."""
    code = [sys.executable, "-c", BEGINNING + meanwhile + END]
    for _ in rounds:
        found = subprocess.run(
            code, timeout=2 * PATIENCE, check=False, capture_output=True, text=True
        )
        assert (found.returncode, found.stderr) == (0, "")
