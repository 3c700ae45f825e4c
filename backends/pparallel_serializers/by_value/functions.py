"""Functions by value: code, closures, and the names that they use.

Source: cloudpickle (cloudpickle/cloudpickle.py), whose order of construction this follows: a
function is made first and filled in afterwards, so that one C pickler, with one memo, handles
functions and classes that refer to themselves or each other. Unlike there, functions share their
closures' cells again, and what has a name in the script goes by that name.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import importlib
import importlib.util
import marshal
import sys
import weakref
from collections.abc import Iterable, Iterator
from types import CellType, CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from pparallel_serializers.by_value import names, namespaces, scripts

if TYPE_CHECKING:
    from pparallel_serializers.by_value.pickler import CodePickler
    from pparallel_serializers.outofband import Reduction

_ATTRIBUTES = ("__defaults__", "__kwdefaults__")  #: set one by one where the code is the same
_REBOUND = ("STORE_DEREF", "DELETE_DEREF")
_TEXTS = (bool, bytes, complex, float, int, str, type(None))

#: by function, with the code that it had then
_digests: weakref.WeakKeyDictionary[FunctionType, tuple[CodeType, bytes]]
_digests = weakref.WeakKeyDictionary()


def reduce_function(pickler: CodePickler, function: FunctionType) -> Reduction:
    """Return *function* by name where the receiver can find it, by value elsewhere."""
    reference = names.by_reference(function)
    if reference is not None:
        return reference
    held = scripts.holding(function)
    if held is not None and not pickler.defines(*held):
        return pickler.named(*held)
    namespace = namespaces.sent_for(pickler, function)
    if namespace.script is not None:
        pickler.need(namespace.script, namespaces.uses(function, namespace.namespace))
    cells = function.__closure__ or ()
    pickler.cells.update({id(cell): cell for cell in cells})
    slots = _slots(function)
    if "__defaults__" in slots:
        slots["__defaults__"] = tuple(map(pickler.by_name, slots["__defaults__"]))
    state = (
        slots,
        function.__dict__ or None,
        namespaces.named_globals(function, namespace) or None,
        tuple((cell, pickler.by_name(cell.cell_contents)) for cell in cells if _is_filled(cell)),
        namespaces.submodules_used(function) or None,
    )
    args = (dump_code(function.__code__), namespace, function.__closure__)
    if held is not None and held[1] == pickler.root:
        script, name = held
        where = (script.sent_uid(), name)
        return pickler.split(
            define_function, (*where, digest(function), *args), fill_defined, state
        )
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


def reduce_cached(pickler: CodePickler, cached: Any) -> Reduction:
    """Return a function under ``lru_cache``, whose results stay behind."""
    if names.is_importable(cached):
        return NotImplemented
    held = scripts.holding(cached)
    if held is not None and not pickler.defines(*held):
        return pickler.named(*held)
    how = cached.cache_parameters()
    return make_cached, (cached.__wrapped__, how["maxsize"], how["typed"])


def make_cached(function: Any, maxsize: int | None, typed: bool) -> Any:
    """Return *function* with a cache of its own."""
    return functools.lru_cache(maxsize, typed)(function)


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


def define_function(uid: str, name: str, wanted: bytes, *args: Any) -> FunctionType:
    """Return the function that is to have *name* in a script: the one it has, or a new one."""
    made: FunctionType = scripts.define(
        uid,
        name,
        lambda own: isinstance(own, FunctionType) and digest(own) == wanted,
        lambda: make_function(*args),
    )
    return made


def fill_defined(function: FunctionType, state: tuple[Any, ...]) -> None:
    """Fill a new function; of one that was here set the attributes that its sender changed."""
    if not scripts.is_kept():
        fill_function(function, state)
        return
    slots, attributes, *_ = state
    for name, value in {**dict.fromkeys(_ATTRIBUTES), **slots, **(attributes or {})}.items():
        if scripts.is_changed(name, value):
            setattr(function, name, value)


def fill_function(function: FunctionType, state: tuple[Any, ...]) -> None:
    """Set what may refer back to *function*: attributes, globals, closure."""
    slots, attributes, named_globals, cells, imported = state
    for name, value in slots.items():
        setattr(function, name, value)
    if attributes:
        function.__dict__.update(attributes)
    namespaces.fill_namespace(function.__globals__, named_globals or {}, imported or ())
    for cell, content in cells:
        cell.cell_contents = content


def fill_cell(cell: CellType, content: object) -> None:
    """Put *content* into *cell*."""
    cell.cell_contents = content


def attributes_of(function: FunctionType) -> dict[str, Any]:
    """Return what is set one by one where the code is the same."""
    return {**{name: getattr(function, name) for name in _ATTRIBUTES}, **function.__dict__}


def parts_of(function: FunctionType) -> list[Any]:
    """Return the objects of which *function* consists, apart from its globals."""
    cells = [each.cell_contents for each in function.__closure__ or () if _is_filled(each)]
    kwdefaults = function.__kwdefaults__ or {}
    defaults = function.__defaults__ or ()
    code = function.__code__
    return [code, *defaults, *kwdefaults.values(), *function.__dict__.values(), *cells]


def digest(function: FunctionType) -> bytes:
    """Return a digest of what *function*'s source says, wherever it is compiled."""
    code, known = function.__code__, _digests.get(function)
    if known is None or known[0] is not code:
        stored = {each.argval for each in dis.get_instructions(code) if each.opname in _REBOUND}
        closed = zip(code.co_freevars, function.__closure__ or (), strict=True)
        cells = [cell for name, cell in closed if name not in stored and _is_filled(cell)]
        inner = [function.__qualname__, *definition(code), *_digested(cells)]
        text = repr(inner).encode("utf-8", "replace")
        known = _digests[function] = code, hashlib.sha256(text).digest()
    return known[1]


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


def _digested(cells: Iterable[CellType]) -> Iterator[Any]:
    """Yield what a decorated function's code refers to, as far as it is text or code."""
    for each in (cell.cell_contents for cell in cells):
        if type(each) in _TEXTS:
            yield each
        elif isinstance(each, FunctionType) and not names.is_importable(each):
            yield [each.__qualname__, *definition(each.__code__)]


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


def _is_filled(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
