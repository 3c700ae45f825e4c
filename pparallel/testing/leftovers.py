"""Finds what a test leaves behind: threads, processes, descriptors, shared memory."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import psutil

_DESCRIPTORS = Path("/proc/self/fd")
_SHARED_MEMORY = Path("/dev/shm")


class _Segment(NamedTuple):
    name: str


#: what there is, with the words that describe it
Inventory = Mapping[Hashable, str]


@contextmanager
def no_leftovers(patience: float = 5.0) -> Iterator[None]:
    """Check that what runs inside leaves nothing behind.

    Threads, child processes, descriptors (sockets, files, pipes) and segments in ``/dev/shm`` that
    exist at the end and did not at the start are leftovers, once *patience* seconds have passed
    for them to go. The helper processes that :mod:`multiprocessing` keeps for the life of the
    program are none, and neither are segments that are mapped in processes other than this one and
    its descendants.

    Raises:
        AssertionError: there are some; each is described.
    """
    before = _inventory()
    yield
    left = _left(before)
    if left:
        gc.collect()
    deadline, pause = monotonic() + patience, threading.Event()
    while (left := _left(before)) and monotonic() < deadline:
        pause.wait(0.02)
    if left:
        message = f"left behind: {'; '.join(left)}"
        raise AssertionError(message)


def _left(before: Inventory) -> list[str]:
    left = {key: words for key, words in _inventory().items() if key not in before}
    segments = {each.name for each in left if isinstance(each, _Segment)}
    elsewhere = _mapped_elsewhere(segments) if segments else set()
    return [
        words
        for key, words in left.items()
        if not (isinstance(key, _Segment) and key.name in elsewhere)
    ]


def _inventory() -> Inventory:
    return {**_threads(), **_processes(), **_descriptors(), **_segments()}


def _threads() -> Inventory:
    return {each: f"thread {each.name!r}" for each in threading.enumerate()}


def _processes() -> Inventory:
    helpers = {
        getattr(resource_tracker._resource_tracker, "_pid", None),
        getattr(forkserver._forkserver, "_forkserver_pid", None),
    }
    found: dict[Hashable, str] = {}
    for child in psutil.Process().children(recursive=True):
        if child.pid not in helpers:
            found[child] = f"process {child.pid} ({_name(child)})"
    return found


def _name(process: psutil.Process) -> str:
    try:
        return f"{process.name()}, {process.status()}"
    except psutil.Error:
        return "ended just now"


def _descriptors() -> Inventory:
    helpers = {
        getattr(resource_tracker._resource_tracker, "_fd", None),
        getattr(forkserver._forkserver, "_forkserver_alive_fd", None),
    }
    found: dict[Hashable, str] = {}
    for entry in _listed(_DESCRIPTORS):
        number = int(entry)
        try:
            target = os.readlink(_DESCRIPTORS / entry)
        except OSError:
            continue  # the descriptor of the listing itself, or closed since
        if number not in helpers and target != "/dev/urandom":
            found["descriptor", number, target] = f"descriptor {number} of {_described(target)}"
    return found


def _described(target: str) -> str:
    kind = target.partition(":")[0]
    return f"file {target}" if target.startswith("/") else f"a {kind} ({target})"


def _segments() -> Inventory:
    return {_Segment(name): f"segment /dev/shm/{name}" for name in _listed(_SHARED_MEMORY)}


def _mapped_elsewhere(names: set[str]) -> set[str]:
    """Return those of the segments that other programs of this machine use."""
    me = psutil.Process()
    ours = {me.pid, *(child.pid for child in me.children(recursive=True))}
    found: set[str] = set()
    for pid in set(psutil.pids()) - ours:
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            maps = Path(f"/proc/{pid}/maps").read_text()
            found.update(name for name in names if f"{_SHARED_MEMORY}/{name}" in maps)
    return found


def _listed(directory: Path) -> list[str]:
    return os.listdir(directory) if directory.is_dir() else []
