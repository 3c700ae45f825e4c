"""The clock that wakes a worker's second thread."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import atexit, threading
atexit.register(threading.Event().wait, 0.2)  # first registered, and so the last that is done
from pparallel.runtime.pools.worker.alarm import Alarm
def wait():
    while True:
        alarm.wait()
        rung.set()
alarm, rung = Alarm(), threading.Event()
threading.Thread(target=wait, daemon=True).start()
alarm.set(0.001, 0.001)
assert rung.wait(20)
"""


def test_it_may_ring_while_the_process_ends() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
