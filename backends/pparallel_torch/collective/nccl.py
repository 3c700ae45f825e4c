"""The collective ``nccl``."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, ClassVar

import torch
from torch._C import _distributed_c10d as c10d
from typing_extensions import override

from pparallel.errors import ConfigError, ResourceExhaustedError
from pparallel.runtime.resources import start_thread
from pparallel_torch.collective.ends import GRACE
from pparallel_torch.collective.forms import Reductions, reductions
from pparallel_torch.collective.native import NativeGroup, Started
from pparallel_torch.collective.store import JobStore
from pparallel_torch.collective.torch_collective import TorchCollective

#: Seconds beyond ours after which torch's own watchdog ends a process whose operation hangs.
_MARGIN = 60.0
_AHEAD = 1000  #: operations that the GPU may have left to do before this thread waits for one
_QUICK, _LONG = 0.00005, 0.002  #: seconds between two looks at the GPU, at first and later
_SPIN = 0.0002  #: seconds in which it is looked at all the time

#: What torch writes when a connection of NCCL's has ended, or was ended.
_SIGNS = ("NCCL", "nccl", "aborted", "onnection", "Timed out", "timed out")


class NcclCollective(TorchCollective):
    """Operations on tensors of GPUs by NCCL; one GPU for each member.

    Operations return once they are enqueued on the current CUDA stream. Errors are found beside the
    stream: by the next operation, by a barrier, or at the close. ``wait()`` of an operation begun
    with ``async_op`` waits for the GPU, and raises what went wrong with it. Barriers, messages and
    objects go over the transport of the job, by the CPU.
    """

    device_type = "cuda"
    instead = "move the tensor to a GPU, or use collective: {backend: gloo}"
    has_barrier = False
    sees_ends = False
    reductions: ClassVar[Reductions] = reductions(bitwise=False)

    @override
    def connect(self, store: JobStore, timeout: float) -> NativeGroup:
        self._check_gpu()
        nccl: Any = getattr(c10d, "ProcessGroupNCCL")  # noqa: B009 - not there without CUDA
        options = nccl.Options()
        options._timeout = timedelta(seconds=self.timeout + _MARGIN)
        made = nccl(store, self.position, self.size(), options)
        return NcclGroup(made, store, self.ends, self.others, self.timeout, self.gave_up)

    def _check_gpu(self) -> None:
        """Refuse a torch that cannot do it.

        Raises:
            ConfigError: no GPU can be used, or torch was built without NCCL.
        """
        path = f"{self.name}.backend"
        if not torch.cuda.is_available():
            message = (
                "torch can use no GPU here: see what pparallel doctor says, or choose gloo, shm or"
                " local"
            )
            raise ConfigError(message, path=path)
        if not hasattr(c10d, "ProcessGroupNCCL"):
            message = "this torch was built without NCCL: install one with CUDA, or choose gloo"
            raise ConfigError(message, path=path)


class NcclGroup(NativeGroup):
    """A process group of NCCL's; nothing of it blocks but what says so."""

    _aborted = False
    #: What the GPU may still have to do: torch's handle, the operation's name, when it began.
    _enqueued: deque[tuple[Started, str, float]]
    _waiting: set[int]  #: threads that wait for the GPU

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._enqueued, self._waiting = deque(), set()
        self._released = threading.Event()

    @override
    def do(self, what: str, begin: Callable[[Any], Started]) -> None:
        """Begin an operation, after which this thread's stream goes on; raise what failed before.

        Once a member has left this waits for the GPU, as nobody else would find that it hangs.
        """

        def in_order(made: Any) -> Started:
            started = begin(made)
            started.wait()  # for the stream alone
            return started

        started = self.begin(what, in_order)
        self._enqueued.append((started, what, time.monotonic()))
        if self.ends.has_left or self.ends.over is not None:
            self.settle()
        elif len(self._enqueued) > _AHEAD and (oldest := self._oldest()):
            self._wait_for(oldest)

    @override
    def begin(self, what: str, begin: Callable[[Any], Started]) -> Started:
        self._raise_finished_errors()
        return super().begin(what, begin)

    @override
    def wait(self, started: Started, what: str, began: float, timeout: float | None) -> None:
        me = threading.get_ident()
        self._waiting.add(me)
        try:
            super().wait(started, what, began, timeout)
        finally:
            self._waiting.discard(me)

    @property
    @override
    def is_waited_for(self) -> bool:
        return bool(self._waiting)

    @override
    def settle(self) -> None:
        while oldest := self._oldest():
            self._wait_for(oldest)

    @override
    def in_background(self, run: Callable[[], None]) -> Callable[[], None]:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())  # which may still write the inputs

        def whole() -> None:
            with torch.cuda.stream(stream):
                run()
            self.settle()  # ends with the group; then the stream has only copies of outputs left
            stream.synchronize()

        return whole

    @override
    def member_left(self) -> None:
        """Abort in a moment what still runs: a thread that waits for the GPU sees no end."""
        if self._enqueued:
            watch = threading.Thread(target=self._abort_unfinished, daemon=True)
            watch.name = "pparallel-nccl-abort"
            with suppress(ResourceExhaustedError):  # then torch's watchdog ends the process
                start_thread(watch)

    @override
    def abort(self) -> None:
        """End all operations; this waits until the GPU has let go of them."""
        if not self._aborted:
            self._aborted = True
            self.made.abort()

    @override
    def wake(self) -> None:
        """Have a thread that waits for the GPU go on; others look up now and then."""
        self.member_left()

    @override
    def release(self) -> None:
        self._released.set()
        self._enqueued.clear()
        if self.ends.has_left or self._aborted:
            self.abort()  # NCCL would wait for those who are gone
        else:
            self.made.shutdown()

    @override
    def passes(self, started: Started, span: timedelta) -> bool:
        now = time.monotonic()
        end, spun, pause = now + span.total_seconds(), now + _SPIN, _QUICK
        while not started.is_completed():
            if self._aborted:
                raise RuntimeError("the operation was aborted")
            now = time.monotonic()
            if now >= end:
                return False
            if now >= spun:
                time.sleep(pause)
                pause = min(2 * pause, _LONG)
        if self._aborted:  # by which the GPU is done, too
            raise RuntimeError("the operation was aborted")
        started.wait()  # raises what went wrong, and has this thread's stream come after it
        return True

    @override
    def is_broken(self, error: Exception) -> bool:
        return isinstance(error, RuntimeError) and any(each in str(error) for each in _SIGNS)

    @override
    def _running(self) -> list[Started]:
        return [*super()._running(), *(started for started, _, _ in list(self._enqueued))]

    def _raise_finished_errors(self) -> None:
        """Raise what has become of operations in order on a stream, without waiting for them."""
        while oldest := self._oldest():
            started, _, began = oldest
            late = self._aborted or time.monotonic() >= began + self._timeout
            if not (late or started.is_completed()):
                return
            self._wait_for(oldest)

    def _oldest(self) -> tuple[Started, str, float] | None:
        with suppress(IndexError):  # another thread may have waited for the last one
            return self._enqueued[0]
        return None

    def _wait_for(self, entry: tuple[Started, str, float]) -> None:
        try:
            self.wait(*entry, None)
        except Exception:
            if self.ends.over is not None:  # all of them have failed
                self._enqueued.clear()
            self._drop(entry)
            raise
        self._drop(entry)

    def _drop(self, entry: tuple[Started, str, float]) -> None:
        with suppress(ValueError):  # another thread has waited for it too
            self._enqueued.remove(entry)

    def _abort_unfinished(self) -> None:
        if self._released.wait(GRACE):
            return
        if not all(started.is_completed() for started, _, _ in list(self._enqueued)):
            self.abort()
