"""Whether a thread has entered a function of a user is asked at any moment, and stops nothing."""

from __future__ import annotations

import gc
import threading
import weakref

from pparallel.runtime import user_code
from pparallel.testing.patience import PATIENCE
from pparallel.testing.threads import in_threads, switching_often


def test_the_collector_is_left_as_it_was() -> None:
    """Also where other threads turn it off and on, as ``timeit`` does."""

    def asks(_: int) -> None:
        for _ in range(300):
            user_code.has_entered(threading.get_ident())

    def turns_off(_: int) -> None:
        for _ in range(20_000):
            assert gc.isenabled()
            gc.disable()
            assert not gc.isenabled()
            gc.enable()

    with switching_often():
        in_threads(3, lambda number: (asks if number else turns_off)(number))
        gc.disable()
        try:
            in_threads(3, asks)
            assert not gc.isenabled()
        finally:
            gc.enable()


def test_what_a_thread_refers_to_is_not_kept() -> None:
    class Value:
        pass

    begun, ended = threading.Event(), threading.Event()

    def waits(value: Value) -> None:
        begun.set()
        ended.wait(PATIENCE)

    value = Value()
    known = weakref.ref(value)
    thread = threading.Thread(target=user_code.run, args=(waits, (value,)))
    thread.start()
    assert begun.wait(PATIENCE)
    gc.disable()
    try:
        assert user_code.has_entered(thread.ident or 0)
        ended.set()
        thread.join()
        del value, thread
        assert known() is None
    finally:
        gc.enable()
