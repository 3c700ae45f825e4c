"""Gradients of a model's parameters: look-up, checks and clearing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache, wraps
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.nn import Module, Parameter

R = TypeVar("R")

_WORD = 8  #: bytes of the integers that are added
_ROW = 4096  #: numbers that are added one after another


def gradient(name: str, parameter: Parameter) -> Tensor:
    """Return the gradient of *parameter* as it is, dense or sparse.

    Raises:
        ValueError: it has none.
    """
    if parameter.grad is None:
        message = (
            f"parameter {name!r} has no gradient: call backward() on a loss that depends on it"
            " before push() or step(), or freeze it with requires_grad_(False) before start()."
            f" {UNUSED_ADVICE}"
        )
        raise ValueError(message)
    return parameter.grad


def gradient_in_its_dtype(name: str, parameter: Parameter) -> Tensor:
    """As :func:`gradient`, for who lays gradients out by the dtypes of parameters.

    Raises:
        ValueError: it has none, or one of another dtype, as ``parameter.grad_dtype`` allows.
    """
    found = gradient(name, parameter)
    if found.dtype != parameter.dtype:
        message = (
            f"the gradient of {name!r} is of dtype {found.dtype}, and the parameter of"
            f" {parameter.dtype}: {DTYPE_ADVICE}"
        )
        raise ValueError(message)
    return found


UNUSED_ADVICE = (
    "Of a module that only some batches use, such as a head, add zero to the loss of the others:"
    " loss + 0 * sum(p.sum() for p in head.parameters())"
)
DTYPE_ADVICE = (
    "this reducer combines gradients in the dtype of the parameter. Leave its grad_dtype as it is,"
    " or keep the parameter in the dtype of its gradient, with torch.autocast around the forward"
    " pass; the reducers 'local', 'diloco' and 'model_server' hand gradients on as they are"
)


def dense(tensor: Tensor) -> Tensor:
    """Return *tensor* itself, or a dense copy if it is sparse."""
    import torch

    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def outside_inference_mode(push: Callable[[R, Module], bool]) -> Callable[[R, Module], bool]:
    """Have a reducer's ``push()`` do as outside ``torch.inference_mode()``, wherever it is called.

    What is made in it, such as the state of an optimizer, could not be written to outside.
    """

    @wraps(push)
    def inside(reducer: R, model: Module) -> bool:
        import torch

        if not torch.is_inference_mode_enabled():
            return push(reducer, model)
        with torch.inference_mode(False):
            return push(reducer, model)

    return inside


def clear(parameters: Iterable[Parameter]) -> None:
    """Set the gradients to None."""
    for parameter in parameters:
        parameter.grad = None


def averages(dtype: torch.dtype) -> bool:
    """Return whether torch computes a mean of several in *dtype*, which is then of it too.

    Floats of one byte, and complex numbers of two float16, have none on some devices.
    """
    return dtype.itemsize > (4 if dtype.is_complex else 1) and _has_nan(dtype)


def first_not_finite(named: Iterable[tuple[str, Tensor]]) -> str | None:
    """Return the name of the first gradient that holds NaN or infinity, None if there is none."""
    import torch

    for name, each in named:
        values = stored(each)
        # The sum reads the tensor once and writes nothing. It may itself overflow.
        if not torch.isfinite(values.sum()) and not torch.isfinite(values).all():
            return name
    return None


def first_with_nan(named: Iterable[tuple[str, Tensor]]) -> str | None:
    """Return the name of the first buffer that holds NaN, None if there is none.

    Infinity is no fault: a mask of -inf is an ordinary buffer.
    """
    import torch

    for name, each in named:
        if not _has_nan(each.dtype) or (averages(each.dtype) and not torch.isnan(each.sum())):
            continue
        if torch.isnan(each).any():
            return name
    return None


def _has_nan(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def stored(tensor: Tensor) -> Tensor:
    """Return the elements of *tensor* that are stored; those of a sparse one that are not are 0."""
    import torch

    if tensor.layout is torch.strided:
        return tensor
    return tensor._values() if tensor.layout is torch.sparse_coo else tensor.values()


def checksum(tensor: Tensor) -> Tensor:
    """Return what changes when elements of *tensor* do, which is strided: [2] int64.

    The first is the sum of its bits as integers, the second that of its numbers: where many signs
    or exponents change, either may stay as it is.
    """
    import torch

    values = tensor.resolve_conj().resolve_neg().reshape(-1).contiguous()
    total = _sum_of_bits(values.view(torch.uint8))
    if not averages(values.dtype):  # torch adds up no others
        return torch.stack([total, torch.zeros_like(total)])
    return torch.stack([total, _sum_of_numbers(values).double().view(torch.int64)])


def _sum_of_numbers(values: Tensor) -> Tensor:
    """Return the sum of *values* in an order that does not depend on the number of threads."""
    import torch

    numbers = torch.view_as_real(values).reshape(-1) if values.is_complex() else values
    wide = numbers.dtype if numbers.itemsize >= _WORD // 2 else torch.float32
    while len(numbers) > _ROW:  # torch has one thread add up each row
        whole = len(numbers) // _ROW * _ROW
        rows = numbers[:whole].view(-1, _ROW).sum(1, dtype=wide)
        numbers = torch.cat([rows, numbers[whole:].to(wide)])
    return numbers.sum(dtype=wide)


def _sum_of_bits(flat: Tensor) -> Tensor:
    import torch

    nbytes = len(flat)
    if flat.data_ptr() % _WORD or nbytes < _WORD or flat.storage_offset() % _WORD:
        return flat.sum()
    whole = nbytes - nbytes % _WORD
    total = flat[:whole].view(torch.int64).sum()
    return total if whole == nbytes else total + flat[whole:].sum()


def references(tensor: Tensor) -> int | None:
    """Return how many tensors share the memory of *tensor*; None where torch does not tell.

    Whoever writes to memory again that gradients lay in has to know whether a hook has kept one.
    """
    if (count := _storage_count()) is None:
        return None
    storage = tensor.untyped_storage()  # the same object for all who ask for it: they count too
    return count(storage._cdata) + sys.getrefcount(storage)


@cache
def _storage_count() -> Callable[[int], int] | None:
    import torch

    return getattr(torch._C, "_storage_Use_Count", None)


def held(parameters: Sequence[Parameter]) -> list[bool]:
    """Return whose gradients anybody else may hold, or share the memory of.

    A gradient that is missing or sparse counts as not held. One in memory that torch has not
    allocated for this process, such as that of a numpy array, counts as held.
    """
    usual = _usual_holders()
    if usual is None:
        return [True] * len(parameters)
    return [each is not None and each != usual for each in _holders(parameters)]


def _holders(parameters: Sequence[Parameter]) -> list[tuple[int, ...] | None]:
    """Return how often each gradient and its memory are referred to, and if it is torch's own."""
    import torch

    count, strided, getrefcount = _storage_count(), torch.strided, sys.getrefcount
    assert count is not None
    found: list[tuple[int, ...] | None] = []
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is None or gradient.layout is not strided:
            found.append(None)
            continue
        storage = gradient.untyped_storage()  # as in references()
        shared, used = count(storage._cdata), gradient._use_count()  # type: ignore[attr-defined]
        owned = storage.resizable(), storage.is_shared()
        found.append((shared, used, *owned, getrefcount(storage), getrefcount(gradient)))
    return found


@cache
def _usual_holders() -> tuple[int, ...] | None:
    """Return the count for a gradient that nobody else holds; None where torch does not tell."""
    import torch

    if _storage_count() is None or not hasattr(torch.Tensor, "_use_count"):
        return None
    sample = torch.nn.Parameter(torch.zeros(1))
    sample.grad = torch.zeros(1)
    return _holders([sample])[0]
