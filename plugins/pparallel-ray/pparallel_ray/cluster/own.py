"""What a cluster of our own needs around it: a folder, a place on the loopback, an end."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ray._private import ray_constants

from pparallel.runtime.processes import forget_in_children, remember_in_children

_JANITOR = str(Path(__file__).with_name("janitor.py"))
_PREFIX = "pparallel-ray-"
_LONGEST = 40  #: characters: below it Ray puts Unix sockets, whose paths have little more than 100
_CLEANING = 30.0  #: seconds


@contextmanager
def folder() -> Iterator[str]:
    """Make a folder for a cluster's sockets, logs and spilled objects; only this user enters it.

    Ray's processes that run in it end, and it is removed, when this is left or the program is gone.
    """
    parent = tempfile.gettempdir()
    short = parent if len(parent) + len(_PREFIX) + 8 <= _LONGEST else "/tmp"
    found = tempfile.mkdtemp(prefix=_PREFIX, dir=short)
    try:
        with cleaned_up(found):
            yield found
    finally:
        shutil.rmtree(found, ignore_errors=True)


@contextmanager
def cleaned_up(folder: str) -> Iterator[None]:
    """Have Ray's processes that run in *folder* ended when this is left or the program is gone."""
    awaited, held = os.pipe()
    forget_in_children(held)
    try:
        janitor = subprocess.Popen(
            [sys.executable, "-I", "-S", _JANITOR, folder],
            stdin=awaited,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is not for it
        )
    finally:
        os.close(awaited)
    try:
        yield
    finally:
        remember_in_children(held)
        os.close(held)
        try:
            janitor.wait(_CLEANING)
        except subprocess.TimeoutExpired:
            janitor.kill()
            janitor.wait()


@contextmanager
def lasting(start: Callable[[], None]) -> Iterator[None]:
    """Have *start* called in a thread that lasts until this is left.

    The kernel ends the processes of a cluster with the thread that has started them.
    """
    done, over = threading.Event(), threading.Event()
    failure: list[BaseException] = []

    def run() -> None:
        try:
            start()
        except BaseException as error:  # noqa: BLE001 - raised by who waits for it
            failure.append(error)
        finally:
            done.set()
        over.wait()

    thread = threading.Thread(target=run, name="pparallel-ray-cluster", daemon=True)
    thread.start()
    try:
        done.wait()
        if failure:
            raise failure[0]
        yield
    finally:
        done.wait()  # an interrupt of the first wait must not leave a cluster that then starts
        over.set()
        thread.join()


@contextmanager
def on_loopback() -> Iterator[None]:
    """Have a new cluster listen on 127.0.0.1 only, or connect to one that does.

    ``ray.init`` takes the machine's own address even where it is told 127.0.0.1. Where clusters of
    several machines are not supported it does not, and that is what it is told here.
    """
    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before
