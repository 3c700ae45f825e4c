"""Functions by value: code, the globals they name, closures.

Source: cloudpickle (cloudpickle/cloudpickle.py), whose order of construction this follows: a
function is made first and filled in afterwards, so that one C pickler, with one memo, handles
functions and classes that refer to themselves or each other. Unlike there, functions share their
closures' cells again, and code that the receiver's own ``__main__`` defines equally is its own.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import marshal
import os
import sys
import weakref
from collections.abc import Iterator
from types import CellType, CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from pparallel_serializers.by_value import names, namespaces

if TYPE_CHECKING:
    from pparallel_serializers.by_value.pickler import CodePickler
    from pparallel_serializers.outofband import Reduction


_digests: weakref.WeakKeyDictionary[FunctionType, bytes] = weakref.WeakKeyDictionary()


def reduce_function(pickler: CodePickler, function: FunctionType) -> Reduction:
    """Return *function* by name where the receiver can import it, by value elsewhere."""
    reference = names.by_reference(function)
    if reference is not None:
        return reference
    namespace = namespaces.sent_for(pickler, function)
    cells = function.__closure__ or ()
    pickler.cells.update({id(cell): cell for cell in cells})
    state = (
        _slots(function),
        function.__dict__ or None,
        namespaces.named_globals(function) if namespace.by_value else None,
        tuple((cell, cell.cell_contents) for cell in cells if _is_filled(cell)),
    )
    args = (dump_code(function.__code__), namespace, function.__closure__)
    if function.__module__ in names.MAIN and _own(function.__qualname__) is function:
        name = (function.__qualname__, digest(function))
        return make_named, (*name, *args), state, None, None, fill_named
    if not any(state):
        return make_function, args
    return make_function, args, state, None, None, fill_function


def reduce_cell(pickler: CodePickler, cell: CellType) -> Reduction:
    """Return *cell*, empty if a function fills it afterwards."""
    if id(cell) in pickler.cells or not _is_filled(cell):
        return CellType, ()
    return CellType, (), cell.cell_contents, None, None, fill_cell


def reduce_code(pickler: CodePickler, code: CodeType) -> Reduction:
    """Return bare *code*."""
    return load_code, (dump_code(code),)


def reduce_module(pickler: CodePickler, module: ModuleType) -> Reduction:
    """Return *module* by name: its state is the receiver's own."""
    name = module.__name__
    if sys.modules.get(name) is not module and not names.is_static(name):
        raise TypeError(f"module {name!r} was made at run time: the receiver cannot import it")
    return importlib.import_module, ("__main__" if name in names.MAIN else name,)


def dump_code(code: CodeType) -> bytes:
    """Return *code* with the mark of the Python version that it runs on."""
    return importlib.util.MAGIC_NUMBER + marshal.dumps(code)


def load_code(data: bytes) -> CodeType:
    """Return the code in *data*, or raise if another Python made it."""
    if data[:4] != importlib.util.MAGIC_NUMBER:
        raise ValueError("the function's code was compiled by another version of Python")
    code = marshal.loads(data[4:])
    if not isinstance(code, CodeType):
        raise TypeError(f"a {type(code).__name__} stands where a function's code should")
    return code


def make_function(
    code: bytes, namespace: dict[str, Any], closure: tuple[CellType, ...] | None
) -> FunctionType:
    """Return a function that :func:`fill_function` has still to fill."""
    return FunctionType(load_code(code), namespace, closure=closure)


def make_named(qualname: str, wanted: bytes, *args: Any) -> FunctionType:
    """Return this process's own ``__main__`` function if it is the same, else a new one."""
    own = _own(qualname)
    if isinstance(own, FunctionType) and digest(own) == wanted:
        return own
    return make_function(*args)


def fill_named(function: FunctionType, state: tuple[Any, ...]) -> None:
    """Fill what :func:`make_named` made, and leave alone what it found."""
    if _own(function.__qualname__) is not function:
        fill_function(function, state)


def fill_function(function: FunctionType, state: tuple[Any, ...]) -> None:
    """Set what may refer back to *function*: attributes, globals, closure."""
    slots, attributes, named_globals, cells = state
    for name, value in slots.items():
        setattr(function, name, value)
    if attributes:
        function.__dict__.update(attributes)
    if named_globals and function.__globals__ is not namespaces.main_globals():
        namespaces.fill_namespace(function.__globals__, named_globals)
    for cell, content in cells:
        cell.cell_contents = content


def fill_cell(cell: CellType, content: object) -> None:
    """Put *content* into *cell*."""
    cell.cell_contents = content


def digest(function: FunctionType) -> bytes:
    """Return a digest of what *function*'s source says, wherever it is compiled."""
    known = _digests.get(function)
    if known is None:
        script = os.path.basename(namespaces.main_globals().get("__file__") or "")
        text = repr((script, function.__qualname__, list(definition(function.__code__))))
        known = _digests[function] = hashlib.sha256(text.encode("utf-8", "replace")).digest()
    return known


def definition(code: CodeType) -> Iterator[Any]:
    """Yield what makes *code* what it is, whatever file and line it is on."""
    yield code.co_code
    yield code.co_names + code.co_varnames + code.co_freevars
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield list(definition(constant))
        elif isinstance(constant, frozenset):
            yield sorted(map(repr, constant))
        else:
            yield constant


def _slots(function: FunctionType) -> dict[str, Any]:
    """Return what the code and the globals alone would not give the new function."""
    code = function.__code__
    found = {
        "__doc__": function.__doc__,
        "__defaults__": function.__defaults__,
        "__kwdefaults__": function.__kwdefaults__,
        "__annotations__": function.__annotations__,
    }
    found = {name: value for name, value in found.items() if value}
    if code.co_name != function.__name__:
        found["__name__"] = function.__name__
    if code.co_qualname != function.__qualname__:
        found["__qualname__"] = function.__qualname__
    if function.__globals__.get("__name__") != function.__module__:
        found["__module__"] = function.__module__
    return found


def _own(qualname: str) -> Any:
    return names.find("__main__", qualname)


def _is_filled(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
