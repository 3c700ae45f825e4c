"""Functions by value: code, closures, and the globals that they use.

Source: cloudpickle (cloudpickle/cloudpickle.py), whose order of construction this follows: a
function is made first and filled in afterwards, so that one C pickler, with one memo, handles
functions and classes that refer to themselves or each other. Unlike there, functions share their
closures' cells again, and what has a name in the script goes by that name.
"""

from __future__ import annotations

import builtins
import functools
import hashlib
import importlib
import importlib.util
import marshal
import re
import sys
import weakref
from collections.abc import Iterable, Iterator
from types import CellType, CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from typing_extensions import override

from pparallel.runtime.code import names_in
from pparallel_serializers.by_value import names, scripts

if TYPE_CHECKING:
    from pparallel_serializers.by_value.pickler import CodePickler
    from pparallel_serializers.outofband import Reduction

CACHED = type(functools.lru_cache(len))  #: the type of what ``lru_cache`` makes

_ATTRIBUTES = ("__defaults__", "__kwdefaults__")  #: set one by one where the code is the same
_TEXTS = (bool, bytes, complex, float, int, str, type(None))
_BY_TEXT = frozenset({"eval", "exec", "globals", "modules", "vars"})  #: ways to names in text
_IDENTIFIER = re.compile(r"[^\W\d]\w*")

#: by function, with the code that it had then
_digests: weakref.WeakKeyDictionary[FunctionType, tuple[CodeType, bytes]]
_digests = weakref.WeakKeyDictionary()


class Named:
    """Stands for an object in a stream: the receiver calls *find* to have it."""

    def __init__(self, find: Any, *args: Any) -> None:
        self._reduction = find, args

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return self._reduction


class Globals(NamedTuple):
    """A function's globals on their way out.

    Attributes:
        namespace: the globals; kept, for they are known by their id while the dump lasts.
        sent: how they are found or made by the receiver.
        script: the script that they are of; its names are sent on their own.
        are_filled: the function brings the globals that it names.
    """

    namespace: dict[str, Any]
    sent: Named
    script: scripts.Script | None = None
    are_filled: bool = False


def reduce_function(pickler: CodePickler, function: FunctionType) -> Reduction:
    """Return *function* by name where the receiver can find it, by value elsewhere."""
    reference = names.by_reference(function)
    if reference is None:
        reference = pickler.reference(function)
    if reference is not None:
        return reference
    make, args, *state = parts(pickler, function)
    return (make, args, state, None, None, fill_function) if any(state) else (make, args)


def parts(pickler: CodePickler, function: FunctionType) -> tuple[Any, ...]:
    """Return how *function* is made, and what :func:`fill_function` is to fill it with."""
    sent = _globals_of(pickler, function)
    cells = function.__closure__ or ()
    pickler.cells.update({id(cell): cell for cell in cells})
    attributes = _given(function) | function.__dict__
    if function.__defaults__:
        attributes["__defaults__"] = tuple(map(pickler.by_name, function.__defaults__))
    filled = tuple((cell, pickler.by_name(cell.cell_contents)) for cell in cells if _is_full(cell))
    args = (dump_code(function.__code__), sent.sent, function.__closure__)
    brought = _brought(function, sent)
    return make_function, args, attributes, brought, filled, _submodules(function)


def parts_of_cached(cached: Any) -> tuple[Any, ...]:
    """Return how a function under ``lru_cache`` is made, whose results stay behind."""
    how = cached.cache_parameters()
    return make_cached, (cached.__wrapped__, how["maxsize"], how["typed"]), {}, {}, (), ()


def reduce_cached(pickler: CodePickler, cached: Any) -> Reduction:
    """Return a function under ``lru_cache`` by name or by value."""
    if names.is_importable(cached):
        return NotImplemented
    return pickler.reference(cached) or parts_of_cached(cached)[:2]


def reduce_cell(pickler: CodePickler, cell: CellType) -> Reduction:
    """Return *cell*, empty if a function fills it afterwards."""
    if id(cell) in pickler.cells or not _is_full(cell):
        return CellType, ()
    return CellType, (), (None, {"cell_contents": cell.cell_contents})  # as the state of slots


def reduce_module(pickler: CodePickler, module: ModuleType) -> Reduction:
    """Return *module* by name: its state is the receiver's own."""
    name = module.__name__
    if sys.modules.get(name) is not module and not names.is_static(name):
        raise TypeError(f"module {name!r} was made at run time: the receiver cannot import it")
    return importlib.import_module, ("__main__" if name in names.MAIN else name,)


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


def fill_function(function: FunctionType, state: Iterable[Any]) -> None:
    """Set what may refer back to *function*: attributes, globals, closure."""
    attributes, brought, cells, imported = state
    for name, value in attributes.items():
        setattr(function, name, value)
    for name, value in brought.items():
        function.__globals__.setdefault(name, value)
    for name in imported:
        importlib.import_module(name)
    for cell, content in cells:
        cell.cell_contents = content


def attributes_of(function: FunctionType) -> dict[str, Any]:
    """Return the attributes that are set one by one where the code is the same."""
    return {**{name: getattr(function, name) for name in _ATTRIBUTES}, **function.__dict__}


def parts_seen(function: FunctionType) -> list[Any]:
    """Return the objects of which *function* consists, apart from its globals."""
    cells = [each.cell_contents for each in function.__closure__ or () if _is_full(each)]
    defaults, kwdefaults = function.__defaults__ or (), function.__kwdefaults__ or {}
    return [
        function.__code__,
        *defaults,
        *kwdefaults.values(),
        *function.__dict__.values(),
        *cells,
    ]


def digest(function: FunctionType) -> bytes:
    """Return a digest of what *function*'s source says, wherever it is compiled."""
    code, known = function.__code__, _digests.get(function)
    if known is None or known[0] is not code:
        closed = zip(code.co_freevars, function.__closure__ or (), strict=True)
        rebound = names_in(code).rebound
        cells = [cell for name, cell in closed if name not in rebound and _is_full(cell)]
        inner = [function.__qualname__, *_definition(code), *_digested(cells)]
        text = repr(inner).encode("utf-8", "replace")
        known = _digests[function] = code, hashlib.sha256(text).digest()
    return known[1]


def uses(function: FunctionType, namespace: dict[str, Any]) -> list[str]:
    """Return the names of a script that *function* uses: in code, annotations, or by text."""
    read = names_in(function.__code__)
    found = [name for name in read.used if name in namespace]
    if function.__annotations__:
        found += named_in(function.__annotations__, namespace)
    if not _BY_TEXT.isdisjoint(read.mentioned):
        found += [
            name
            for name, value in [*namespace.items()]
            if isinstance(value, (FunctionType, type)) and value.__module__ in names.MAIN
        ]
    return found


def named_in(annotations: dict[str, Any], namespace: dict[str, Any]) -> list[str]:
    """Return the names of a script in the text of *annotations*."""
    texts = [each for each in annotations.values() if type(each) is str]
    return [name for text in texts for name in _IDENTIFIER.findall(text) if name in namespace]


def make_namespace(initial: dict[str, Any]) -> dict[str, Any]:
    """Return globals of no module, to be filled."""
    return {"__builtins__": builtins, **initial}


def module_namespace(name: str) -> dict[str, Any]:
    """Return the globals of an importable module."""
    return vars(importlib.import_module(name))


def _globals_of(pickler: CodePickler, function: FunctionType) -> Globals:
    """Return the globals of *function*, the same for all functions that have them."""
    namespace = function.__globals__
    known = pickler.namespaces.get(id(namespace))
    if known is None:
        known = pickler.namespaces[id(namespace)] = _new_globals(pickler, namespace)
    if known.script is not None:
        pickler.need(known.script, uses(function, namespace))
    return known


def _new_globals(pickler: CodePickler, namespace: dict[str, Any]) -> Globals:
    name = namespace.get("__name__")
    module = sys.modules.get(name) if isinstance(name, str) else None
    is_of_module = module is not None and vars(module) is namespace
    if is_of_module and names.is_static(name):
        where = "__main__" if name in names.MAIN else name
        return Globals(namespace, Named(module_namespace, where))
    script = scripts.of(namespace)
    if script is not None:
        return Globals(namespace, Named(scripts.namespace_of, script.sent_uid()), script)
    if is_of_module and not pickler.recurse:
        return Globals(namespace, Named(module_namespace, name))
    initial = {key: namespace[key] for key in ("__name__", "__file__") if key in namespace}
    return Globals(namespace, Named(make_namespace, initial), are_filled=True)


def _brought(function: FunctionType, sent: Globals) -> dict[str, Any]:
    """Return those globals that *function* brings along.

    With a module that the receiver imports those are the names that only a rewriter of the source
    can have put there, as pytest does for ``assert``.
    """
    read, namespace = names_in(function.__code__), function.__globals__
    return {
        name: namespace[name]
        for name in read.used
        if (sent.are_filled or not name.isidentifier()) and name in namespace
    }


def _submodules(function: FunctionType) -> list[str]:
    """Return the modules to import for *function*: ``import a.b`` binds ``a`` alone."""
    namespace, read = function.__globals__, names_in(function.__code__)
    used = [namespace.get(name) for name in read.used]
    packages = [each for each in used if isinstance(each, ModuleType) and hasattr(each, "__path__")]
    pending = [each.__name__ for each in packages]
    imported: list[str] = []
    while pending:
        package = pending.pop()
        below = [f"{package}.{name}" for name in read.mentioned]
        found = sorted(name for name in below if name in sys.modules)
        pending += found
        imported += found
    return imported


def _definition(code: CodeType) -> Iterator[Any]:
    """Yield the parts of *code* that its file and line do not change."""
    yield code.co_code
    yield code.co_names + code.co_varnames + code.co_freevars
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield list(_definition(constant))
        else:
            yield sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant


def _digested(cells: Iterable[CellType]) -> Iterator[Any]:
    """Yield the text and code that a decorated function refers to."""
    for each in (cell.cell_contents for cell in cells):
        if type(each) in _TEXTS:
            yield each
        elif isinstance(each, FunctionType) and not names.is_importable(each):
            yield [each.__qualname__, *_definition(each.__code__)]


def _given(function: FunctionType) -> dict[str, Any]:
    """Return the attributes that code and globals alone would not give the new function."""
    code = function.__code__
    made: dict[str, Any] = {
        "__doc__": None,
        "__kwdefaults__": None,
        "__annotations__": {},
        "__name__": code.co_name,
        "__qualname__": code.co_qualname,
        "__module__": function.__globals__.get("__name__"),
    }
    found = {name: getattr(function, name) for name in made}
    return {name: value for name, value in found.items() if value != made[name]}


def _is_full(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
