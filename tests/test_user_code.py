"""Whether a thread has entered a function of a user is asked at any moment, and stops nothing."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

from pparallel.runtime import user_code
from pparallel.testing.patience import PATIENCE
from pparallel.testing.threads import in_threads

ASKS_WHILE_GARBAGE_IS_COLLECTED = """
import gc, sys, threading, time
from pparallel.runtime.user_code import has_entered

class Cycle:
    def __init__(self):
        self.me = self
    def __del__(self):
        time.sleep(0)  # has another thread run

def starts_threads():
    while not ended.is_set():
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()

ended = threading.Event()
sys.setswitchinterval(1e-5)
gc.set_threshold(20)
waiting = [threading.Thread(target=ended.wait) for _ in range(30)]
starting = [threading.Thread(target=starts_threads) for _ in range(2)]
for each in [*waiting, *starting]:
    each.start()
for _ in range(3000):
    Cycle()
    has_entered(waiting[0].ident)
ended.set()
for each in [*waiting, *starting]:
    each.join()
"""


def test_threads_start_and_garbage_is_collected_while_it_is_asked() -> None:
    """CPython before 3.11.9 let nothing of the process run any more."""
    code = [sys.executable, "-c", ASKS_WHILE_GARBAGE_IS_COLLECTED]
    assert subprocess.run(code, timeout=PATIENCE, check=False).returncode == 0


def test_the_collector_is_left_as_it_was() -> None:
    def asks(_: int) -> None:
        for _ in range(300):
            user_code.has_entered(0)

    assert gc.isenabled()
    in_threads(4, asks)
    assert gc.isenabled()
    gc.disable()
    try:
        in_threads(4, asks)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_the_collector_is_left_to_a_forked_process() -> None:
    def asks_or_forks(number: int) -> None:
        for _ in range(20 if number else 2000):
            if number == 0:
                user_code.has_entered(0)
            elif (child := os.fork()) == 0:
                os._exit(0 if gc.isenabled() else 1)
            else:
                assert os.waitpid(child, 0)[1] == 0

    in_threads(2, asks_or_forks)
