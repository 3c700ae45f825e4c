"""The picklers that also send code: functions, classes and what they are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from sys import modules
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from typing_extensions import Buffer, override

from pparallel.interfaces.serializer import Carried
from pparallel_serializers import outofband
from pparallel_serializers.by_value import (
    classes,
    foreign,
    fresh,
    functions,
    members,
    names,
    scripts,
)
from pparallel_serializers.refusals import RefusedError

if TYPE_CHECKING:
    from pparallel_serializers.by_value.namespaces import SentNamespace
    from pparallel_serializers.outofband import Reduction

CodeReducer = Callable[["CodePickler", Any], "Reduction"]

#: kinds that are the same in each process, or the same as their copies
IMMUTABLE = (bool, bytes, complex, float, int, str, type(None), ModuleType, BuiltinFunctionType)


class Named:
    """Stands for an object in a stream that refers to it by its name."""

    def __init__(self, find: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.reference = find, args

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return self.reference


class CodePickler(outofband.OutOfBandPickler):
    """Sends by value the functions and classes that a receiver cannot import.

    Attributes:
        recurse: whether the globals of importable modules that sent functions name go by value too.
        carries: which names of a script go along with what uses them: all, those that this process
            did not get from elsewhere, or none.
        needed: the names that what is being pickled uses, and whether it refers to them itself.
        root: the name whose value is being pickled, of :attr:`script`.
        state: what the function or class that has that name holds.
        placeholders: placeholders for attributes of the class that cannot be pickled.
    """

    recurse = False
    carries: Carried = "all"
    root: str | None = None
    script: scripts.Script | None = None
    state: tuple[Any, ...] | None = None
    placeholders: Mapping[str, Any] = {}

    def __init__(self, share: frozenset[str] = frozenset()) -> None:
        super().__init__(share)
        self.namespaces: dict[int, SentNamespace] = {}
        #: cells that a function fills; kept, for their ids must not be used again
        self.cells: dict[int, CellType] = {}
        self.needed: dict[tuple[scripts.Script, str], bool] = {}

    @override
    def clear(self) -> None:
        self.namespaces.clear()
        self.cells.clear()
        self.needed.clear()
        super().clear()

    @override
    def take(self) -> list[Buffer]:
        needed = dict(self.needed)
        frames = super().take()
        if not needed or self.carries == "nothing":
            return frames
        from pparallel_serializers.by_value import units

        return units.joined(self, needed, frames)

    @override
    def reducer_override(self, obj: Any) -> Reduction:
        kind = type(obj)
        if kind is FunctionType or kind is type:
            # The common case, quickly: found in its module. See names.is_importable.
            name = obj.__module__
            module = modules.get(name)
            if getattr(module, obj.__qualname__, None) is obj and name not in names.MAIN:
                return NotImplemented
        reduce: Any = _reducers.get(kind)
        if reduce is None:
            reduce = outofband.reducers.get(kind)
            if reduce is None:
                if isinstance(obj, type):
                    return classes.reduce_class(self, obj)
                return NotImplemented
        return reduce(self, obj)

    def named(self, script: scripts.Script, path: str) -> Reduction:
        """Return the reference to what has a name in *script*."""
        self.needed[script, path.partition(".")[0]] = True
        return scripts.find_named, (script.sent_uid(), path)

    def need(self, script: scripts.Script, used: Iterable[str]) -> None:
        """Note that what is being pickled uses these names of *script*."""
        for name in used:
            self.needed.setdefault((script, name), False)

    def defines(self, script: scripts.Script, path: str) -> bool:
        """Return whether what has this name is part of what is being pickled as a definition."""
        return script is self.script and path.partition(".")[0] == self.root

    def split(self, make: Callable[..., Any], args: tuple[Any, ...], *state: Any) -> Reduction:
        """Return what the definition of a function or class is made of, and keep what it holds."""
        self.state = state
        return make, args

    def by_name(self, obj: Any) -> Any:
        """Return *obj*, or a reference if it is itself the value of a name of the script."""
        if type(obj) in IMMUTABLE or isinstance(obj, (tuple, FunctionType, type)):
            return obj
        script = scripts.own()
        name = script.name_of(obj)
        return obj if name is None else Named(*self.named(script, name))


class UnitPickler(CodePickler):
    """Pickles what a name of a script stands for, or several names that share an object.

    What is in there and is itself the value of another name goes by that name. A function or a
    class that is the value is pickled in two parts: what it is made of, and then what it holds,
    which may lead back to it.

    Attributes:
        group: the names.
        values: the names of all values by the ids of these, which last as long.
        begins_anew: something in the value is as after an import where it arrives.
    """

    group: tuple[str, ...] = ()
    values: dict[int, tuple[str, Any]]
    begins_anew = False

    @override
    def clear(self) -> None:
        self.state, self.begins_anew = None, False
        super().clear()

    @override
    def persistent_id(self, obj: Any) -> str | None:
        """Return the name of *obj*; functions and classes have theirs by themselves."""
        found = self.values.get(id(obj))
        if found is None or found[0] in self.group or isinstance(obj, (FunctionType, type)):
            return None
        assert self.script is not None
        self.needed[self.script, found[0]] = True
        return found[0]

    @override
    def reducer_override(self, obj: Any) -> Reduction:
        reduce = fresh.reducers.get(type(obj))
        if reduce is not None:
            if type(obj) is WeakKeyDictionary and len(obj) and self.state is None:
                raise RefusedError("a WeakKeyDictionary that holds items cannot be pickled", obj)
            self.begins_anew = True
            return reduce(obj)
        return super().reducer_override(obj)

    @override
    def by_name(self, obj: Any) -> Any:
        return obj


_reducers: dict[type, CodeReducer] = {
    CellType: functions.reduce_cell,
    CodeType: functions.reduce_code,
    FunctionType: functions.reduce_function,
    MethodType: classes.reduce_method,
    ModuleType: functions.reduce_module,
    foreign.CACHED: functions.reduce_cached,
    type: classes.reduce_class,
    **members.reducers,
    **dict.fromkeys(foreign.TYPES, foreign.reduce),
}
