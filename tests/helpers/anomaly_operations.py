"""Operations that do not survive that a thread cannot be started, each in its way."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from pparallel.errors import CallTimeoutError, ResourceExhaustedError
from pparallel.runtime.resources import start_thread

Perform = Callable[[], None]


def _start() -> None:
    start_thread(threading.Thread(target=int)).join()


def sound(_: Any) -> Perform:
    return _start


def deaf_afterwards(_: Any) -> Perform:
    failed: list[BaseException] = []

    def perform() -> None:
        if failed:
            raise LookupError("it has failed before")
        try:
            _start()
        except ResourceExhaustedError as error:
            failed.append(error)
            raise

    return perform


def silent(_: Any) -> Perform:
    def perform() -> None:
        try:
            _start()
        except ResourceExhaustedError:
            raise CallTimeoutError("an operation", 0.0) from None

    return perform


def wrong(_: Any) -> Perform:
    from pparallel.testing.anomalies.operations import WrongResultError

    def perform() -> None:
        try:
            _start()
        except ResourceExhaustedError:
            raise WrongResultError("3 instead of 4") from None

    return perform


def unexplained(_: Any) -> Perform:
    def perform() -> None:
        try:
            _start()
        except ResourceExhaustedError:
            raise AttributeError("'NoneType' object has no attribute 'send'") from None

    return perform


def leaking(_: Any) -> Perform:
    def perform() -> None:
        number = os.open("/dev/null", os.O_RDONLY)
        _start()
        os.close(number)

    return perform


def forgetting(_: Any) -> Perform:
    futures: list[Future[None]] = []  # of a job: whoever waits for them would wait for ever

    def perform() -> None:
        future = Future[None]()
        futures.append(future)
        _start()
        future.set_result(None)

    return perform


def hanging(_: Any) -> Perform:
    def wait_for_ever() -> None:
        threading.Event().wait()

    def perform() -> None:
        try:
            _start()
        except ResourceExhaustedError:
            wait_for_ever()

    return perform
