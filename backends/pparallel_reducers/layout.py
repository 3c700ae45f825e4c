"""Lay a model's tensors out in one flat buffer per dtype."""

from __future__ import annotations

import hashlib
import itertools
import logging
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from typing_extensions import Buffer, override

from pparallel.machine.copying import elements_overlap

if TYPE_CHECKING:  # a member that trains nothing opens its reducer too, and imports no torch
    import torch
    from torch import Tensor
    from torch.nn import Module, Parameter

Flats: TypeAlias = "dict[torch.dtype, Tensor]"  #: one contiguous 1-d tensor per dtype


class Entry(NamedTuple):
    """One tensor of a model: plain data, which every serializer can send."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: str  # "trainable", "frozen" or "buffer"

    @override
    def __str__(self) -> str:
        return f"{self.kind} {self.name!r} of shape {self.shape} and dtype {self.dtype}"

    @property
    def shape_and_use(self) -> tuple[object, ...]:
        """The same whether a parameter is trainable or frozen."""
        return (*self[:3], self.kind == "buffer")


class Section:
    """Some of a model's tensors, and where each lies in the flat buffer of its dtype."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._places: dict[torch.dtype, list[tuple[str, tuple[int, ...], int, int]]] = {}
        self._sizes: dict[torch.dtype, int] = {}
        for entry in entries:
            import torch

            dtype = getattr(torch, entry.dtype)
            start = self._sizes.get(dtype, 0)
            end = start + torch.Size(entry.shape).numel()
            self._places.setdefault(dtype, []).append((entry.name, entry.shape, start, end))
            self._sizes[dtype] = end

    def pack(self, tensor: Callable[[str], Tensor]) -> Flats:
        """Copy the tensors that *tensor* returns by name into new flat buffers on the CPU."""
        flats = self.empty()
        for name, view in self.views(flats):
            view.copy_(tensor(name).detach())
        return flats

    def empty(self) -> Flats:
        """Return new flat buffers on the CPU, not filled yet."""
        import torch

        return {dtype: torch.empty(size, dtype=dtype) for dtype, size in self._sizes.items()}

    def views(self, flats: Mapping[torch.dtype, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Return each tensor's name and its place in *flats*, in its own shape."""
        for dtype, places in self._places.items():
            for name, shape, start, end in places:
                yield name, flats[dtype][start:end].view(shape)

    def buffers(self, flats: Flats) -> list[Buffer]:
        """Return the memory of *flats*, which is on the CPU."""
        import torch

        # numpy, through which the memory is reached, knows neither bfloat16 nor float8.
        return [flats[dtype].view(torch.uint8).numpy().data for dtype in self._sizes]

    def flats(self, buffers: Sequence[Buffer]) -> Flats:
        """Return flat tensors over the memory of *buffers*, which is the caller's own.

        Raises:
            ValueError: their number or sizes are not this section's.
        """
        import torch

        if len(buffers) != len(self._sizes):
            message = f"{len(buffers)} buffers arrived, and the model has {len(self._sizes)} dtypes"
            raise ValueError(message)
        flats: Flats = {}
        for (dtype, size), buffer in zip(self._sizes.items(), buffers, strict=True):
            held = memoryview(buffer).nbytes
            if held != size * dtype.itemsize:
                message = f"{held} bytes of {dtype} arrived, not {size * dtype.itemsize}"
                raise ValueError(message)
            flats[dtype] = (
                torch.frombuffer(buffer, dtype=dtype) if size else torch.empty(0, dtype=dtype)
            )
        return flats

    @property
    def sizes(self) -> Mapping[torch.dtype, int]:
        """How many elements the flat buffer of each dtype has."""
        return self._sizes

    def inside(
        self, dtype: torch.dtype, first: int, count: int
    ) -> list[tuple[str, tuple[int, ...], int, int]]:
        """Return whose elements lie in a part of a flat buffer: name, shape, and which of them."""
        end = first + count
        return [
            (name, shape, max(first, start) - start, min(end, stop) - start)
            for name, shape, start, stop in self._places[dtype]
            if max(first, start) < min(end, stop)
        ]

    def __len__(self) -> int:
        return len(self._sizes)


class Layout:
    """The parameters and persistent buffers of a model, in order.

    Attributes:
        entries: all of them.
        gradients: the trainable parameters.
        buffers: the persistent buffers, such as running means.
        state: all of them, as they are published.
    """

    def __init__(self, entries: Iterable[Sequence[object]]) -> None:
        self.entries = tuple(_entry(each) for each in entries)
        self.gradients = Section(each for each in self.entries if each.kind == "trainable")
        self.buffers = Section(each for each in self.entries if each.kind == "buffer")
        self.state = Section(self.entries)

    @classmethod
    def of(cls, model: Module) -> Layout:
        """Return the layout of *model*.

        Raises:
            ValueError: a tensor has no shape yet.
        """
        return cls(_entry_of(*each) for each in _tensors(without_compilation(model)))

    @cached_property
    def digest(self) -> str:
        """The same for equal layouts, in every process."""
        return hashlib.sha256(repr(self.entries).encode()).hexdigest()

    def plain(self) -> list[tuple[object, ...]]:
        """Return the entries as plain data, of which the constructor makes the same layout."""
        return [tuple(each) for each in self.entries]

    def check_shapes(self, other: Layout) -> None:
        """As :meth:`check`, but whether a parameter is trainable or frozen makes no difference."""
        if self._shapes != other._shapes:
            raise self._difference(other, lambda each: each.shape_and_use)

    @cached_property
    def _shapes(self) -> tuple[tuple[object, ...], ...]:
        return tuple(each.shape_and_use for each in self.entries)

    def check(self, other: Layout) -> None:
        """Refuse *other*, a model's, if it is not this layout, which is the managed model's.

        Raises:
            ValueError: it differs; the first difference is named.
        """
        if other.digest != self.digest:
            raise self._difference(other, tuple)

    def _difference(self, other: Layout, matters: Callable[[Entry], object]) -> ValueError:
        pairs = itertools.zip_longest(self.entries, other.entries)
        mine, theirs = next(
            pair for pair in pairs if None in pair or matters(pair[0]) != matters(pair[1])
        )
        return ValueError(
            f"the model is not like the managed one: it has {theirs or NOTHING}, the managed has"
            f" {mine or NOTHING}"
        )

    def first_missing(self, model: Module) -> str | None:
        """Return what to say of the first tensor that *model* no longer has, None if it has all."""
        found = state_of(model)
        for entry in self.entries:
            if entry.name not in found or tuple(found[entry.name].shape) != entry.shape:
                return f"the model no longer has {entry}, which it had at start()"
        return None


NOTHING = "nothing more"


def without_compilation(model: Module) -> Module:
    """Return the module that ``torch.compile`` has wrapped, or *model* if it has not."""
    # Nothing is compiled where this was not imported, which takes long.
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    compiled = getattr(dynamo, "OptimizedModule", ())
    return model._orig_mod if isinstance(model, compiled) else model


def state_of(model: Module) -> dict[str, Tensor]:
    """Return parameters and buffers by name."""
    model = without_compilation(model)
    return {**_all_names(model), **_all_buffers(model)}


def _all_buffers(model: Module) -> dict[str, Tensor]:
    if _names_its_own(model):
        return dict(model.named_buffers())
    return dict(model.named_buffers(remove_duplicate=False))


def _all_names(model: Module) -> dict[str, Parameter]:
    """Return the parameters of *model* by each of their names: some are tied or have an alias."""
    if _names_its_own(model):
        return dict(model.named_parameters())
    return dict(model.named_parameters(remove_duplicate=False))


class ModelTensors:
    """The tensors of one model, as they were when they were recorded.

    Gradients belong to the parameters that a run began with: a layer that is frozen, unfrozen,
    replaced or added later would be left out without a word.

    Attributes:
        layout: of the model.
        parameters: all of them, by name.
        trainable: those that have gradients, by name.
        written: whether the reducer copies into them.
    """

    def __init__(self, model: Module, *, written: bool = True) -> None:
        """Record the tensors of *model*.

        Args:
            model: the model.
            written: whether its reducer copies into them.

        Raises:
            ValueError: one has no shape yet, or they are written, and elements of one share memory.
        """
        model = without_compilation(model)
        self.written = written
        self.layout = Layout.of(model)
        for name, tensor, kind in _tensors(model) if written else ():
            _validate_memory(name, tensor, kind)
        self.parameters = dict(model.named_parameters())
        self.trainable = [each for each in self.parameters.items() if each[1].requires_grad]
        self._buffers = [each for each in self.layout.entries if each.kind == "buffer"]
        self._kinds = [_KIND(each) for each in self.parameters.values()]
        self._marks = _marks(model)

    def has_changed(self, model: Module) -> bool:
        """Return whether *model* has other parameters now, or others of them are trained."""
        model = without_compilation(model)
        if (marks := _marks(model)) == self._marks:
            return False
        if self._has_changed(_all_names(model)):
            return True
        self._marks = marks  # of other modules, and the same parameters
        return False

    def _has_changed(self, found: Mapping[str, Parameter]) -> bool:
        if any(found.get(name) is not each for name, each in self.parameters.items()):
            return True  # another name beside is no change
        if set(map(id, found.values())) != set(map(id, self.parameters.values())):
            return True
        return [_KIND(each) for each in self.parameters.values()] != self._kinds

    def validate(self, model: Module) -> None:
        """Refuse *model* if its parameters are no longer those that were recorded.

        Raises:
            ValueError: the first difference is named.
        """
        if not self.has_changed(model):
            return
        found = _all_names(without_compilation(model))
        raise ValueError(f"{self._first_change(found)} since start(): {ADVICE}")

    def buffers(self, model: Module) -> list[tuple[str, Tensor]]:
        """Return the persistent buffers of *model*, which programs replace as they like.

        Raises:
            ValueError: one is missing, has another shape or dtype than at the start, or cannot be
                copied into.
        """
        found = _all_buffers(without_compilation(model)) if self._buffers else {}
        named = []
        for entry in self._buffers:
            buffer = found.get(entry.name)
            if buffer is None or _entry_of(entry.name, buffer, "buffer") != entry:
                now = "is missing" if buffer is None else f"is {_described(buffer)}"
                message = f"{entry} {now} since start(): {ADVICE}"
                raise ValueError(message)
            if self.written:
                _validate_memory(entry.name, buffer, "buffer")
            named.append((entry.name, buffer))
        return named

    def _first_change(self, found: Mapping[str, Parameter]) -> str:
        for name, parameter in self.parameters.items():
            if name not in found:
                now = next((other for other, one in found.items() if one is parameter), None)
                return f"parameter {name!r} " + (f"became {now!r}" if now else "was removed")
            if found[name] is not parameter:
                return f"parameter {name!r} was replaced by another tensor"
        known = set(map(id, self.parameters.values()))
        for name, parameter in found.items():
            if id(parameter) not in known:
                return f"parameter {name!r} was added"
        before = {each.name: each for each in self.layout.entries}
        for name, parameter in self.parameters.items():
            if parameter.requires_grad != (before[name].kind == "trainable"):
                return f"parameter {name!r} was {'un' * parameter.requires_grad}frozen"
            if str(parameter.dtype) != f"torch.{before[name].dtype}":
                return f"parameter {name!r} became {parameter.dtype}"
        return "parameters moved to another device"


ADVICE = "call stop() first, then change the model and its optimizer, then call start() again"


_Marks: TypeAlias = "tuple[list[str], list[int], list[object]]"

_KIND = operator.attrgetter("requires_grad", "dtype", "device")


def _marks(model: Module) -> _Marks:
    """Return what is the same as long as a model has the same parameters by the same names.

    It is quick, as this is done in each step.
    """
    names, parameters = _names_and_parameters(model)
    return names, list(map(id, parameters)), list(map(_KIND, parameters))


def parameters_of(model: Module) -> list[Parameter]:
    """Return the parameters of *model*: tied ones as often as they are tied.

    To tell them apart by their names, as ``model.parameters()`` does, takes longer, and this is
    done in each step.
    """
    return _names_and_parameters(model)[1]


def _names_and_parameters(model: Module) -> tuple[list[str], list[Parameter]]:
    """Return the names of modules and parameters where they are, and the parameters.

    Of a model that names its parameters itself they are those that it says.
    """
    if _names_its_own(model):
        own = dict(model.named_parameters())
        return list(own), list(own.values())
    names: list[str] = []
    parameters: list[Parameter] = []
    for module in model.modules():
        names += module._modules.keys()
        if found := {name: each for name, each in module._parameters.items() if each is not None}:
            names += found
            parameters += found.values()
        names.append(_END)
    return names, parameters


_END = ""  #: of a module, whose names are not empty


def _names_its_own(model: Module) -> bool:
    import torch

    plain = torch.nn.Module
    methods = ("parameters", "named_parameters", "named_modules", "modules", "named_buffers")
    return any(
        getattr(getattr(model, x), "__func__", None) is not getattr(plain, x) for x in methods
    )


def warn_of_max_norm(model: Module, logger: logging.Logger) -> None:
    """Log that an embedding of *model* writes into its parameter, where others have it too."""
    import torch

    for name, module in model.named_modules():
        embeds = isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag)
        if embeds and module.max_norm is not None:
            logger.warning(
                "%r has max_norm, with which its forward pass writes into its parameter: each"
                " member does that to rows of its own, and others do not learn of it. Scale rows"
                " in a hook of the optimizer (register_step_post_hook) instead",
                name,
            )
            return


def state_in(layout: Layout, model: Module) -> Flats:
    """Return a copy of the whole state of *model*, as :func:`load` takes it."""
    return layout.state.pack(state_of(model).__getitem__)


def load(layout: Layout, flats: Flats, model: Module) -> None:
    """Copy *flats*, a whole state, into *model*."""
    import torch

    tensors = state_of(model)
    with torch.no_grad():
        for name, view in layout.state.views(flats):
            tensors[name].copy_(view)


def overlaps(tensor: Tensor) -> bool:
    """Return whether several elements may be one place in memory, as after ``expand()``."""
    import torch

    if tensor.layout is not torch.strided or tensor.is_contiguous():
        return False
    return elements_overlap(tensor.shape, tensor.stride())


def _tensors(model: Module) -> Iterator[tuple[str, Tensor, str]]:
    for name, parameter in model.named_parameters():
        yield name, parameter, "trainable" if parameter.requires_grad else "frozen"
    # Buffers that are not persistent are a member's own business: caches, masks. A model may have a
    # state_dict() of its own, which says nothing of that.
    own_names = _names_its_own(model)
    own = {
        f"{path}.{name}" if path else name
        for path, module in (
            model.named_modules() if own_names else model.named_modules(remove_duplicate=False)
        )
        for name in module._non_persistent_buffers_set
    }
    seen: set[int] = set()
    for name, buffer in _all_buffers(model).items():
        if name not in own and id(buffer) not in seen:
            seen.add(id(buffer))
            yield name, buffer, "buffer"


def _validate_shape(name: str, tensor: Tensor, kind: str) -> None:
    from torch.nn.parameter import is_lazy

    if is_lazy(tensor):
        what = "buffer" if kind == "buffer" else "parameter"
        message = (
            f"{what} {name!r} has no shape yet: pass data through the model once, so that its"
            " lazy modules are made, before the optimizer and start()"
        )
        raise ValueError(message)


def _validate_memory(name: str, tensor: Tensor, kind: str) -> None:
    import torch

    if tensor.layout is not torch.strided:
        what = "buffer" if kind == "buffer" else "parameter"
        message = (
            f"{what} {name!r} has the layout {tensor.layout}, and only dense ones can be sent to"
            " other members: give it as to_dense(), or register a buffer with persistent=False"
        )
        raise ValueError(message)
    if overlaps(tensor):
        what = "buffer" if kind == "buffer" else "parameter"
        message = (
            f"elements of {what} {name!r} share memory, as expand() makes them, and nothing can be"
            " copied into it: give each its own with .clone(), before start()"
        )
        raise ValueError(message)


def _entry_of(name: str, tensor: Tensor, kind: str) -> Entry:
    _validate_shape(name, tensor, kind)
    return Entry(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), kind)


def _described(tensor: Tensor) -> str:
    return f"of shape {tuple(tensor.shape)} and dtype {tensor.dtype}"


def _entry(values: Sequence[object]) -> Entry:
    name, shape, dtype, kind = values
    return Entry(str(name), tuple(shape), str(dtype), str(kind))  # type: ignore[arg-type]
