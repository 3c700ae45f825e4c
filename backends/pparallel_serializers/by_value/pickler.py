"""The pickler that also sends code: functions, classes and what they are made of."""

from __future__ import annotations

from collections.abc import Callable
from sys import modules
from types import CellType, CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from pparallel_serializers import outofband
from pparallel_serializers.by_value import classes, foreign, functions, members, names

if TYPE_CHECKING:
    from pparallel_serializers.by_value.namespaces import SentNamespace
    from pparallel_serializers.outofband import Reduction

CodeReducer = Callable[["CodePickler", Any], "Reduction"]


class CodePickler(outofband.OutOfBandPickler):
    """Sends by value the functions and classes that a receiver cannot import."""

    recurse = False

    def __init__(self, share: frozenset[str] = frozenset()) -> None:
        super().__init__(share)
        self.namespaces: dict[int, SentNamespace] = {}
        #: cells that a function fills; kept, for their ids must not be used again
        self.cells: dict[int, CellType] = {}

    @override
    def clear(self) -> None:
        self.namespaces.clear()
        self.cells.clear()
        super().clear()

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


class RecursingCodePickler(CodePickler):
    """Sends by value also the globals of importable modules that sent functions name."""

    recurse = True


_reducers: dict[type, CodeReducer] = {
    CellType: functions.reduce_cell,
    CodeType: functions.reduce_code,
    FunctionType: functions.reduce_function,
    ModuleType: functions.reduce_module,
    type: classes.reduce_class,
    **members.reducers,
    **dict.fromkeys(foreign.TYPES, foreign.reduce),
}
