"""What the parts of a model exchange and compute, seen in one forward pass."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from typing_extensions import override

from pparallel.models.running import Sample, run

if TYPE_CHECKING:
    from torch import nn

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Connections(Mapping[tuple[str, str], int]):
    """What parts exchange, as a mapping that a placer takes, and what they compute.

    ``placer.place(found.parts, found)`` places what was measured.

    Attributes:
        moved: bytes that went from one part to another, by their names.
        compute: floating point operations of each part, by its name.
        parts: the parts themselves.
    """

    moved: Mapping[tuple[str, str], int]
    compute: Mapping[str, int]
    parts: Mapping[str, nn.Module]

    @override
    def __getitem__(self, pair: tuple[str, str]) -> int:
        return self.moved[pair]

    @override
    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self.moved)

    @override
    def __len__(self) -> int:
        return len(self.moved)


def measure_connections(
    model: nn.Module | Callable[..., object],
    sample: Sample,
    kwargs: Mapping[str, object] | None = None,
    *,
    parts: Mapping[str, nn.Module] | Iterable[str] | None = None,
) -> Connections:
    """Return what the parts of *model* exchange and compute in one forward pass.

    What a part makes belongs to it; where another part computes with it, its bytes have moved,
    once. What *model* itself does between its parts (adds, concatenates) is taken to run where the
    fewest bytes move. Operations are counted by torch: those of matrix products, convolutions and
    attention.

    The pass is run once, without gradients and as in evaluation. Hooks and modes are afterwards as
    they were; what a forward pass changes by itself stays changed. As settings of torch's change
    meanwhile, nothing else is to run in this process.

    Args:
        model: a module, or a function that calls the *parts*.
        sample: what it is called with: a tuple holds the positional arguments, and anything else
            is the only one.
        kwargs: its keyword arguments.
        parts: the parts by name, or the names of submodules (``"encoder"``, ``"heads.0"``);
            ``None``: the direct children.

    Raises:
        ValueError: there are no parts, a name is not that of a submodule, or a part is another's
            part.
        TypeError: *model* is a function and *parts* does not say its parts.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from pparallel.models.tracing import Tracer

    known = _parts(model, parts)
    counter = FlopCounterMode(display=False)
    tracer = Tracer(counter.get_total_flops)
    modules = [model] if isinstance(model, torch.nn.Module) else []
    with ExitStack() as after:
        after.enter_context(torch.no_grad())
        after.enter_context(counter)
        for name, part in known.items():
            after.enter_context(tracer.watching(name, part))
        after.enter_context(tracer)
        run(model, [*modules, *known.values()], sample, kwargs or {})
    if idle := sorted(set(known) - tracer.called):
        logger.warning("The forward pass did not call %s: nothing is known of it", ", ".join(idle))
    return Connections(tracer.moved, {name: tracer.compute[name] for name in known}, known)


def _parts(
    model: nn.Module | Callable[..., object],
    parts: Mapping[str, nn.Module] | Iterable[str] | None,
) -> dict[str, nn.Module]:
    import torch

    if isinstance(parts, Mapping):
        known = dict(parts)
    elif not isinstance(model, torch.nn.Module):
        message = f"{model!r} is no module: say its parts as parts={{name: module, ...}}"
        raise TypeError(message)
    elif parts is None:
        known = dict(model.named_children())
    else:
        known = {name: _submodule(model, name) for name in parts}
    if not known:
        message = f"{type(model).__name__} has no parts whose exchange could be measured"
        raise ValueError(message)
    for one, part in known.items():
        for other, whole in known.items():
            if one != other and any(part is each for each in whole.modules()):
                message = f"part {one!r} is in part {other!r}: give one of them"
                raise ValueError(message)
    return known


def _submodule(model: nn.Module, name: str) -> nn.Module:
    try:
        return model.get_submodule(name)
    except AttributeError as error:
        known = ", ".join(each for each, _ in model.named_modules() if each)
        message = f"{type(model).__name__} has no submodule {name!r}; it has: {known}"
        raise ValueError(message) from error
