"""Libraries keep to a number of threads, those loaded already and those loaded later."""

from __future__ import annotations

import pytest
from process_children import outcome

from pparallel.machine.threads import limit_threads

ASK = """
import ctypes, os
import numpy, torch
say(torch.get_num_threads())
(path,) = {line.split()[-1] for line in open("/proc/self/maps") if "openblas" in line}
blas = ctypes.CDLL(path)
names = ("scipy_openblas_get_num_threads64_", "openblas_get_num_threads64_",
    "scipy_openblas_get_num_threads", "openblas_get_num_threads")
say(next(getattr(blas, each)() for each in names if hasattr(blas, each)))
"""
LIBRARIES = ["numpy", "torch"]
APPLY = "from pparallel.machine.threads import apply_thread_limit as apply\n"


def test_the_environment_of_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    for each in limit_threads(1):
        monkeypatch.delenv(each, raising=False)
    limits = limit_threads(3)
    assert set(limits.values()) == {"3"}
    assert {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"} <= limits.keys()
    monkeypatch.setenv("OMP_NUM_THREADS", "2")  # the user's own limit is lower
    monkeypatch.setenv("MKL_NUM_THREADS", "16")
    monkeypatch.setenv("NUMBA_NUM_THREADS", "many")
    limits = limit_threads(3)
    assert limits["OMP_NUM_THREADS"] == "2"
    assert (limits["MKL_NUM_THREADS"], limits["NUMBA_NUM_THREADS"]) == ("3", "3")


def test_libraries_that_are_loaded_later() -> None:
    assert outcome(f"{APPLY}apply(1)\n{ASK}")[0] == ["1", "1"]


def test_libraries_that_are_loaded_already() -> None:
    code = f"import sys; say('torch' in sys.modules)\n{APPLY}apply(1)\n{ASK}"
    assert outcome(code, preload=LIBRARIES)[0] == ["True", "1", "1"]


def test_torch_that_is_loaded_already_may_get_more() -> None:
    assert outcome(f"import torch\n{APPLY}apply(2)\n{ASK}", preload=LIBRARIES)[0][0] == "2"
