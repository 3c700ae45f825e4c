"""What an operation combines with, and the handle of one that runs."""

from __future__ import annotations

import contextvars
import enum
import itertools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from typing_extensions import override

from pparallel.errors import CallTimeoutError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

R = TypeVar("R", covariant=True)

_numbers = itertools.count()

_SHORT = 2  #: bytes of an element for which torch's fused multiplication and addition is not exact


class ReduceOp(enum.Enum):
    """How the tensors of several members become one, element by element.

    ``AVG`` takes real and complex numbers, ``MIN`` and ``MAX`` whatever has an order, and the
    bitwise ones integers and truth values.

    ``AVG`` divides first: each member's value is multiplied by the reciprocal of the number of
    members before it is added, as ``DistributedDataParallel`` does. So a mean overflows only where
    it does not fit the dtype itself: that of two float16 values of 40,000 is 40,000. With 2, 4, 8
    ... members each share is exact, unless it is so small that the dtype has no number for it, and
    a mask of ``finfo(float32).min`` stays what it is. With other numbers of members shares are
    rounded, and the mean of the largest values that a dtype has may be infinite.
    """

    SUM = "sum"
    PRODUCT = "product"
    MIN = "min"
    MAX = "max"
    AVG = "avg"
    BAND = "band"
    BOR = "bor"
    BXOR = "bxor"

    def __init__(self, _: str) -> None:
        self._on_cpu: set[torch.dtype] = set()  # dtypes known to fit: small reductions are quick

    def check(self, tensor: Tensor) -> None:
        """Refuse a tensor that this does not apply to, before anything is sent.

        Raises:
            ValueError: the tensor's dtype does not fit, or torch cannot combine it.
        """
        if not (tensor.is_cpu and tensor.dtype in self._on_cpu):
            _validate_dtype(self, tensor.dtype, tensor.device.type)
            if tensor.is_cpu:
                self._on_cpu.add(tensor.dtype)

    def divide(self, tensor: Tensor, count: int) -> None:
        """Make *tensor* this member's part of the result of *count* members, in place.

        ``AVG`` divides it by *count*; for all others it is that part already.
        """
        if self is ReduceOp.AVG:
            _reals(tensor).mul_(1 / count)

    def into(self, total: Tensor, other: Tensor) -> None:
        """Combine *other* into *total*, in place; for ``AVG`` both are divided already."""
        _kernel(self)(total, other, out=total)

    def combine(self, parts: Sequence[Tensor], out: Tensor) -> None:
        """Write the combination of *parts* to *out*, in their order.

        *out* may be one of the first two parts; ``AVG`` then begins with that one.

        Args:
            parts: the values of all members, not divided: tensors of one shape and dtype.
            out: tensor of the same shape and dtype, not a conjugated view.
        """
        if self is ReduceOp.AVG:
            _mean(parts, out)
            return
        if len(parts) == 1:
            out.copy_(parts[0])
            return
        kernel = _kernel(self)
        kernel(parts[0], parts[1], out=out)
        for each in parts[2:]:
            kernel(out, each, out=out)


@cache
def _kernel(how: ReduceOp) -> Callable[..., Any]:
    import torch

    kernels: dict[ReduceOp, Callable[..., Any]] = {
        ReduceOp.SUM: torch.add,
        ReduceOp.AVG: torch.add,
        ReduceOp.PRODUCT: torch.mul,
        ReduceOp.MIN: torch.minimum,
        ReduceOp.MAX: torch.maximum,
        ReduceOp.BAND: torch.bitwise_and,
        ReduceOp.BOR: torch.bitwise_or,
        ReduceOp.BXOR: torch.bitwise_xor,
    }
    return kernels[how]


def _mean(parts: Sequence[Tensor], out: Tensor) -> None:
    """Write the sum of *parts*, each divided by how many there are, to *out*.

    Wherever in a tensor an element lies, it is rounded alike: not so in a product of torch's that
    weighs two parts at once, such as ``addr``.
    """
    import torch

    if len(parts) > 1 and out is parts[1]:
        parts = [out, parts[0], *parts[2:]]
    if out.is_complex():
        out, *parts = map(_reals, (out, *parts))
    count, dtype = len(parts), out.dtype
    share = 1 / count
    if dtype.itemsize > _SHORT:
        factor = _shares.get((count, dtype))
        if factor is None or type(out) is not torch.Tensor:  # a subclass may take no other kind
            factor = _share(count, dtype)
        torch.mul(parts[0], factor, out=out)
        for place in range(1, count):
            torch.add(out, parts[place], alpha=share, out=out)
        return
    # Torch rounds `alpha` to a dtype of 2 bytes; vectors are rounded once, and the elements behind
    # the last vector twice. Without `alpha` it takes one pass more.
    torch.mul(parts[0], share, out=out)
    for place in range(1, count):
        torch.add(out, parts[place] * share, out=out)


# Reciprocals as tensors: to make one of a number takes longer than to multiply a small tensor.
_shares: dict[tuple[int, torch.dtype], Tensor] = {}


def _share(count: int, dtype: torch.dtype) -> Tensor:
    import torch

    found = torch.tensor(1 / count, dtype=dtype, device="cpu")
    if type(found) is torch.Tensor:  # not where a mode has it be another, as FakeTensorMode does
        _shares[count, dtype] = found
    return found


def _reals(tensor: Tensor) -> Tensor:
    """Return a tensor as real numbers: a complex one may be too large to multiply as such."""
    if not tensor.is_complex():
        return tensor
    import torch

    return torch.view_as_real(tensor.resolve_conj())


@cache
def _validate_dtype(how: ReduceOp, dtype: torch.dtype, device_type: str) -> None:
    import torch

    numbers = dtype.is_floating_point or dtype.is_complex
    match how:
        case ReduceOp.SUM | ReduceOp.PRODUCT:
            fits = True
        case ReduceOp.AVG:
            fits = numbers
        case ReduceOp.MIN | ReduceOp.MAX:
            fits = not dtype.is_complex
        case _:
            fits = not numbers
    if not fits:
        raise ValueError(f"{how.name} does not apply to {dtype}")
    try:
        one = torch.zeros(dtype.itemsize, dtype=torch.uint8, device=device_type).view(dtype)
        how.combine([one, one], one.clone())
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"{how.name} does not apply to {dtype}: torch cannot combine it; convert the tensor to"
            " a dtype with arithmetic first, such as float32 or int64"
        ) from error


class Work(ABC, Generic[R]):
    """An operation that runs; its tensors belong to it until :meth:`wait` returns."""

    @abstractmethod
    def wait(self, timeout: float | None = None) -> R:
        """Wait until it is done and return its result.

        ``None`` waits as long as the config says; the operation has failed then. After a
        *timeout* of the caller's own it goes on, and may be waited for again.

        Raises:
            CallTimeoutError: it took longer.
            PeerLostError: a member that it needs is gone.
            ClosedError: the collective was closed.
        """

    @abstractmethod
    def is_completed(self) -> bool:
        """Return whether :meth:`wait` would return, or raise, at once."""


class FutureWork(Work[R]):
    """An operation that some thread carries out, by :meth:`run`; others wait for it."""

    def __init__(self, operation: Callable[[], R]) -> None:
        self._operation: Callable[[], R] | None = operation
        self._future: Future[R] = Future()

    @override
    def wait(self, timeout: float | None = None) -> R:
        try:
            return self._future.result(timeout)
        except TimeoutError:
            if timeout is None or self._future.done():
                return self._future.result()  # the error is the operation's, or it has just ended
            raise CallTimeoutError("a collective operation", timeout) from None

    @override
    def is_completed(self) -> bool:
        return self._future.done()

    def run(self) -> None:
        """Carry it out, once; what it raises is raised where it is waited for."""
        operation, self._operation = self._operation, None
        assert operation is not None
        try:
            result = operation()
        except BaseException as error:  # noqa: BLE001 - raised where the work is waited for
            del operation
            self._future.set_exception(error)
        else:
            # Its tensors are the caller's, and to free one lets other threads run: if then the
            # program ended, which waits for no daemon, torch would abort it.
            del operation
            self._future.set_result(result)

    def fail(self, error: BaseException) -> None:
        """Raise *error* where it is waited for: it is not carried out."""
        self._future.set_exception(error)


class BackgroundWork(FutureWork[R]):
    """An operation that runs in a thread of its own."""

    def __init__(self, operation: Callable[[], R]) -> None:
        super().__init__(operation)
        context = contextvars.copy_context()
        threading.Thread(
            target=context.run,
            args=(self.run,),
            name=f"collective-{next(_numbers)}",
            daemon=True,
        ).start()
