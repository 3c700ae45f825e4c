"""One forward pass that leaves a model as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

Sample = Any


def run(
    model: Callable[..., object],
    modules: Iterable[nn.Module],
    sample: Sample,
    kwargs: Mapping[str, object],
) -> object:
    """Call *model* with a sample while *modules* are as in evaluation; return what it returns.

    Kernels that fuse a whole layer are off meanwhile, so that what it is made of can be seen.

    Args:
        model: a module, or a function that calls some.
        modules: what is put in evaluation mode, and back into the mode that each part had.
        sample: a tuple of positional arguments, or the only one.
        kwargs: keyword arguments.
    """
    arguments = sample if type(sample) is tuple else () if sample is None else (sample,)
    with ExitStack() as after:
        for each in modules:
            after.enter_context(_evaluating(each))
        after.enter_context(_unfused())
        return model(*arguments, **kwargs)


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    modes = [(each, each.training) for each in module.modules()]
    try:
        module.eval()
        yield
    finally:
        for each, training in modes:
            each.training = training


@contextmanager
def _unfused() -> Iterator[None]:
    import torch

    fast = torch.backends.mha.get_fastpath_enabled()
    libraries: tuple[Any, ...] = (torch.backends.mkldnn, torch.backends.cudnn)
    enabled = [each.enabled for each in libraries]
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        for each in libraries:
            each.enabled = False
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for each, was in zip(libraries, enabled, strict=True):
            each.enabled = was
