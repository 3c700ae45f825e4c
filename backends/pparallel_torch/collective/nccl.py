"""The collective ``nccl``."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any, ClassVar

import torch
from torch._C import _distributed_c10d as c10d
from typing_extensions import override

from pparallel.errors import ConfigError
from pparallel_torch.collective.forms import Reductions, reductions
from pparallel_torch.collective.native import NativeGroup, Started
from pparallel_torch.collective.store import JobStore
from pparallel_torch.collective.torch_collective import TorchCollective

#: Seconds beyond ours after which torch's own watchdog ends a process whose operation hangs.
_MARGIN = 600.0
_QUICK, _LONG = 0.00005, 0.002  #: seconds between two looks at the GPU, at first and later
_SPIN = 0.0002  #: seconds in which it is looked at all the time

#: What torch writes when a connection of NCCL's has ended, or was ended.
_SIGNS = ("NCCL", "nccl", "aborted", "onnection", "Timed out", "timed out")


class NcclCollective(TorchCollective):
    """Operations on tensors of GPUs by NCCL; one GPU for each member.

    An operation is done when the GPU has done it: the calling thread waits for that, so that a
    member that is lost is an error, and not a GPU that waits for ever. Barriers, messages and
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

    @override
    def abort(self) -> None:
        """End all operations; this waits until the GPU has let go of them."""
        if not self._aborted:
            self._aborted = True
            self.made.abort()

    @override
    def wake(self) -> None:
        """Do nothing: who waits looks up now and then, and aborting would block the caller."""

    @override
    def release(self) -> None:
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
        started.wait()  # raises what went wrong, and has this thread's stream come after it
        return True

    @override
    def is_broken(self, error: Exception) -> bool:
        return isinstance(error, RuntimeError) and any(each in str(error) for each in _SIGNS)
