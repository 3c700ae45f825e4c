"""Finds what a test leaves behind: threads, processes, descriptors, shared memory."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import psutil

from pparallel.runtime import processes

_DESCRIPTORS = Path("/proc/self/fd")
_SHARED_MEMORY = Path("/dev/shm")
_OWN_CHILDREN = Path("/proc/thread-self/children")
_GPU = "/dev/nvidia"
_NUMBERS = re.compile(r"(?<![0-9A-Za-z])\d{2,7}(?![0-9A-Za-z])")


class Descriptor(NamedTuple):
    """A descriptor of this process, and what it is of, as ``/proc/self/fd`` says it."""

    number: int
    target: str


class Segment(NamedTuple):
    """A segment of shared memory, by its name in ``/dev/shm``."""

    name: str


Leftover = threading.Thread | psutil.Process | Descriptor | Segment
Keeps = Callable[[Leftover], bool]

#: pids of this process's descendants, also of those that have ended since they were seen
_descendants: set[int] = set()

#: what there is, with the words that describe it
Inventory = Mapping[Leftover, str]


@contextmanager
def no_leftovers(patience: float = 5.0, keeps: Keeps | None = None) -> Iterator[None]:
    """Check that what runs inside leaves nothing behind.

    Threads, child processes, descriptors (sockets, files, pipes) and segments in ``/dev/shm`` that
    exist at the end and did not at the start are leftovers, once *patience* seconds have passed
    for them to go. The helper processes that pparallel and :mod:`multiprocessing` keep for the life
    of the program are none, and neither is what CUDA opens for the life of the process, nor are the
    children of a child that was there before, or segments of other programs: another user's, those
    that processes other than this one and its descendants have mapped or open, and those whose
    names have numbers none of which is the pid of this process or of a descendant. A descendant
    that ends before it is seen is taken for another program in this respect.

    Args:
        patience: seconds that what is left has to go.
        keeps: says of what would be a leftover whether it belongs to something that goes on
            around what runs inside, such as a connection that a library makes when it likes.

    Raises:
        AssertionError: there are some; each is described.
    """
    before = _inventory()
    yield
    left = _left(before, keeps)
    deadline, pause = monotonic() + patience, threading.Event()
    is_collected = False  # that takes long, and most of what is left is just about to go
    while left and monotonic() < deadline:
        pause.wait(0.02)
        left = _still(left, before, keeps)
        if left and not is_collected:
            gc.collect()
            is_collected = True
            left = _still(left, before, keeps)
    if left:
        message = f"left behind: {'; '.join(left.values())}"
        raise AssertionError(message)


def _still(left: Inventory, before: Inventory, keeps: Keeps | None) -> Inventory:
    """Return what of *left* is there still.

    What has appeared meanwhile is another's: the segment of a program that runs beside this one.
    """
    return {key: words for key, words in _left(before, keeps).items() if key in left}


def _left(before: Inventory, keeps: Keeps | None) -> Inventory:
    left = {key: words for key, words in _inventory().items() if key not in before}
    opens = any(isinstance(each, Descriptor) and each.target.startswith(_GPU) for each in left)
    left = {key: words for key, words in left.items() if not _is_of_cuda(key, opens)}
    segments = {each.name for each in left if isinstance(each, Segment)}
    elsewhere = _of_others(segments) if segments else set()
    return {
        key: words
        for key, words in left.items()
        if not (isinstance(key, Segment) and key.name in elsewhere)
        and not (isinstance(key, psutil.Process) and _has_ancestor(key, before))
        and not (keeps is not None and keeps(key))
    }


def _is_of_cuda(key: Leftover, opens: bool) -> bool:
    """Return whether it may be what CUDA opens once and keeps, and torch for sharing its memory.

    Args:
        key: what is left.
        opens: whether it has opened anything that is surely its own.
    """
    if isinstance(key, Segment):
        torch = sys.modules.get("torch")
        shares = torch is not None and torch.cuda.is_initialized()
        return key.name.startswith(("cuda.shm.", *([f"torch_{os.getpid()}_"] if shares else [])))
    opened = (_GPU, "/dev/shm/cuda.", *(("anon_inode:[eventfd]", "pipe:") if opens else ()))
    return isinstance(key, Descriptor) and key.target.startswith(opened)


def _has_ancestor(process: psutil.Process, before: Inventory) -> bool:
    """Return whether *process* was started by a child that was there before."""
    with contextlib.suppress(psutil.Error):  # it has ended
        return any(each in before for each in process.parents())
    return False


def _inventory() -> Inventory:
    return {**_threads(), **_processes(), **_descriptors(), **_segments()}


def _threads() -> Inventory:
    return {each: f"thread {each.name!r}" for each in threading.enumerate()}


def _processes() -> Inventory:
    helpers = processes.helpers()[0] | {
        getattr(resource_tracker._resource_tracker, "_pid", None),
        getattr(forkserver._forkserver, "_forkserver_pid", None),
    }
    found: dict[Leftover, str] = {}
    for pid in _below(os.getpid()):
        _descendants.add(pid)
        if pid not in helpers:
            with contextlib.suppress(psutil.NoSuchProcess):
                child = psutil.Process(pid)
                found[child] = f"process {pid} ({_name(child)})"
    return found


def _below(pid: int) -> Iterator[int]:
    """Yield the children of a process, and theirs.

    The kernel's own lists of them are read: to look at every process of the machine, as psutil
    does, would cost more than most tests do.
    """
    if not _OWN_CHILDREN.exists():  # a kernel that keeps no lists
        yield from (each.pid for each in psutil.Process(pid).children(recursive=True))
        return
    for listing in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended
            for child in map(int, listing.read_text().split()):
                yield child
                yield from _below(child)


def _name(process: psutil.Process) -> str:
    try:
        return f"{process.name()}, {process.status()}"
    except psutil.Error:
        return "ended just now"


def _descriptors() -> Inventory:
    helpers = processes.helpers()[1] | {
        getattr(resource_tracker._resource_tracker, "_fd", None),
        getattr(forkserver._forkserver, "_forkserver_alive_fd", None),
    }
    found: dict[Leftover, str] = {}
    for entry in _listed(_DESCRIPTORS):
        number = int(entry)
        try:
            target = os.readlink(_DESCRIPTORS / entry)
        except OSError:
            continue  # the descriptor of the listing itself, or closed since
        if number not in helpers and target != "/dev/urandom":
            found[Descriptor(number, target)] = f"descriptor {number} of {_described(target)}"
    return found


def _described(target: str) -> str:
    kind = target.partition(":")[0]
    return f"file {target}" if target.startswith("/") else f"a {kind} ({target})"


def _segments() -> Inventory:
    return {Segment(name): f"segment /dev/shm/{name}" for name in _listed(_SHARED_MEMORY)}


def _of_others(names: set[str]) -> set[str]:
    """Return those of the segments that belong to other programs of this machine."""
    ours = {os.getpid(), *_below(os.getpid())}
    others = set(psutil.pids()) - ours
    inodes = {each: inode for each in names if (inode := _own_inode(each)) is not None}
    found = names - inodes.keys()
    for each in names:
        numbers = {int(part) for part in _NUMBERS.findall(each)}
        if numbers and not numbers & (ours | _descendants):
            found.add(each)
    for pid in others:
        used = _used(Path(f"/proc/{pid}")) if found < names else set()
        found |= {each for each in names if inodes.get(each) in used}
    return found


def _own_inode(segment: str) -> int | None:
    """Return the number of a segment of this user's."""
    with contextlib.suppress(FileNotFoundError):  # gone just now
        state = (_SHARED_MEMORY / segment).stat()
        return state.st_ino if state.st_uid == os.geteuid() else None
    return None


def _used(process: Path) -> set[int]:
    """Return the numbers of the segments that a process has mapped or open.

    Names would not do: a semaphore is mapped under a name that it loses before it gets its own.
    """
    found: set[int] = set()
    inside = f"{_SHARED_MEMORY}/"
    with contextlib.suppress(OSError):  # it has ended, or is another user's
        for line in (process / "maps").read_text().splitlines():
            if inside in line:
                found.add(int(line.split(maxsplit=5)[4]))
        for each in (process / "fd").iterdir():
            with contextlib.suppress(OSError):  # it has been closed
                if os.readlink(each).startswith(inside):
                    found.add(each.stat().st_ino)
    return found


def _listed(directory: Path) -> list[str]:
    return os.listdir(directory) if directory.is_dir() else []
