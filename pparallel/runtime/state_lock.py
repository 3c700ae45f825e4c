"""The one lock that guards the state of calls, of the threads that run them and of their timers.

It is held for a few steps at a time, and nothing is waited for, sent, or called that is a user's
meanwhile: no other lock is ever taken under it. The garbage collector may run a user's ``__del__``
in a thread that holds it. A call from there is refused, since it would find half a change.
"""

from __future__ import annotations

import os
import threading

state_lock = threading.RLock()

is_held_here = state_lock._is_owned  # type: ignore[attr-defined] # as threading.Condition asks it


def refuse_reentry() -> None:
    """Refuse to enter where the calling thread is in the midst of changing the state.

    Raises:
        RuntimeError: a finalizer or a signal's handler calls.
    """
    if is_held_here():
        message = (
            "a call from a finalizer (__del__, weakref.finalize, gc.callbacks) or a signal's"
            " handler has interrupted another call of its thread: have it put the work on a"
            " queue.SimpleQueue, for a thread of yours"
        )
        raise RuntimeError(message)


os.register_at_fork(after_in_child=state_lock._at_fork_reinit)  # type: ignore[attr-defined]
