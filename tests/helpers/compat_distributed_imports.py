"""What an import changes in the program that does it."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import warnings
from collections.abc import Sequence
from importlib import import_module

import torch
import torch.multiprocessing


def import_all(payload: bytes, _: Sequence[int]) -> None:
    """Import modules, and write down which of them have changed which settings of the program."""
    modules, outcome = pickle.loads(payload)
    changed = []
    for module in modules:
        before = _settings()
        import_module(module)
        after = _settings()
        changed += [f"{module}: {name}" for name, value in after.items() if value != before[name]]
    outcome.write_text(", ".join(changed))


def _settings() -> dict[str, object]:
    return {
        "sharing strategy": torch.multiprocessing.get_sharing_strategy(),
        "start method": multiprocessing.get_start_method(allow_none=True),
        "default dtype": torch.get_default_dtype(),
        "threads": torch.get_num_threads(),
        "warnings": list(warnings.filters),
        "loggers": (logging.root.level, list(logging.root.handlers)),
        "hooks": (sys.excepthook, threading.excepthook),
        "signals": [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)],
        "environment": dict(os.environ),
        "recursion": sys.getrecursionlimit(),
        "running": threading.active_count(),
    }
