"""Classes by value, and how a process knows that two of them are one.

A class that has a name in the script goes by that name. Any other carries an id: the process that
defined it finds its own class by that id, every other builds the class once and finds it by that id
later.

Source: cloudpickle (cloudpickle/cloudpickle.py) for making a class bare and filling it afterwards.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import sys
import types
import typing
import uuid
import weakref
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from pparallel_serializers.by_value import functions, names, scripts
from pparallel_serializers.by_value.functions import CACHED

if TYPE_CHECKING:
    from pparallel_serializers.by_value.pickler import CodePickler
    from pparallel_serializers.outofband import Reduction

_HEAP_TYPE = 1 << 9  #: set in ``__flags__`` of classes that are made at run time
#: attributes that a class gets from its construction, and (the last one) from being pickled
_MADE_BY_TYPE = frozenset(
    {"__dict__", "__weakref__", "__module__", "__qualname__", "__slots__", "_abc_impl"}
    | {"__slotnames__"}
)
_MADE_BY_ENUM = frozenset({"__new__", "__reduce_ex__", "_generate_next_value_"})
_MADE_BY_ENUM |= {"__new_member__", "_new_member_", "_member_type_"}
_OF_CTYPES = frozenset({"_fields_", "_pack_"})
_READ_EARLY = ("__slots__", "__orig_bases__", *_OF_CTYPES)  #: while a class is made
_BY_VALUE = (int, float, complex, str, bytes, bool, type(None))
_SENTINELS = ["MISSING", "KW_ONLY", "_HAS_DEFAULT_FACTORY", "_FIELD"]
_SENTINELS += ["_FIELD_CLASSVAR", "_FIELD_INITVAR"]

#: ids of classes without a name, the classes of these ids, and the stamps of those that came
_uids: weakref.WeakKeyDictionary[type, str] = weakref.WeakKeyDictionary()
_classes: weakref.WeakValueDictionary[str, type] = weakref.WeakValueDictionary()
_stamps: weakref.WeakKeyDictionary[type, int | None] = weakref.WeakKeyDictionary()
_digests: weakref.WeakKeyDictionary[type, bytes] = weakref.WeakKeyDictionary()


def reduce_class(pickler: CodePickler, cls: type) -> Reduction:
    """Return *cls* by name where the receiver can find it, by value elsewhere."""
    reference = names.by_reference(cls)
    if reference is not None:
        return reference
    if not cls.__flags__ & _HEAP_TYPE:
        return _reduce_builtin(cls)
    reference = pickler.reference(cls)
    if reference is not None:
        return reference
    make, args, *state = parts(pickler, cls)
    with scripts.lock:
        uid = _uids.get(cls)
        if uid is None:
            uid = _uids[cls] = uuid.uuid4().hex
            _classes[uid] = cls
        stamp = _stamps[cls] if cls in _stamps else _stamp(cls)
    return find_class, (uid, make, *args), (stamp, *state), None, None, fill_class


def parts(pickler: CodePickler, cls: type) -> tuple[Any, ...]:
    """Return how *cls* is made, and what it is to be filled with."""
    if pickler.script is not None:
        annotations = vars(cls).get("__annotations__", {})
        pickler.need(pickler.script, functions.named_in(annotations, pickler.script.namespace))
    body: dict[str, Any] = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    how = type(cls), cls.__name__, cls.__bases__, body
    if isinstance(cls, enum.EnumMeta):
        members: dict[str, Any] = dict(cls.__members__)
        values = [(name, each._value_) for name, each in members.items()]
        states = {name: vars(each) for name, each in members.items()}
        return make_enum, (*how, values, vars(cls).get("_boundary_")), _enum_state(cls), states
    body.update({name: vars(cls)[name] for name in _READ_EARLY if name in vars(cls)})
    return make_class, how, {**attributes_of(cls), **pickler.placeholders}, _registered(cls)


def find_class(uid: str, make: Callable[..., type], *how: Any) -> type:
    """Return the class of this *uid*, or a new one."""
    with scripts.lock:
        known = _classes.get(uid)
        if known is None:
            known = _classes[uid] = make(*how)
            _uids[known], _stamps[known] = uid, None
        return known


def fill_class(cls: type, state: tuple[int, dict[str, Any], Any]) -> None:
    """Give *cls* its attributes, unless it is this process's own or has them already."""
    stamp, *rest = state
    if _stamps.get(cls, stamp) != stamp:
        fill(cls, rest)
        _stamps[cls] = stamp


def fill(cls: type, state: Any) -> None:
    """Give *cls* attributes, and what its members or its register hold."""
    attributes, rest = state
    put: Any = setattr if type(cls).__module__ == "_ctypes" else type.__setattr__
    for name, value in attributes.items():
        put(cls, name, value)
    if isinstance(cls, enum.EnumMeta):
        members: dict[str, Any] = dict(cls.__members__)
        for name, member_state in rest.items():
            members[name].__dict__.update(member_state)
    else:
        for subclass in rest:
            cls.register(subclass)  # type: ignore[attr-defined]


def make_class(kind: type, name: str, bases: tuple[Any, ...], namespace: dict[str, Any]) -> type:
    """Return a class that :func:`fill_class` has still to fill.

    The hooks of metaclasses and bases that are sent themselves have run where it was defined.
    """
    ancestors = [each for base in bases if isinstance(base, type) for each in base.__mro__]
    hooked = next((each for each in ancestors if "__init_subclass__" in vars(each)), object)
    hook = vars(hooked)["__init_subclass__"]
    is_sent = hooked is not object and _is_sent(hooked)
    with scripts.lock:
        if is_sent:
            type.__setattr__(hooked, "__init_subclass__", classmethod(lambda _, **__: None))
        try:
            maker = next(each for each in kind.__mro__ if not _is_sent(each))
            if maker is not kind or kind.__name__ == "_TypedDictMeta":  # that refuses its own bases
                maker = type if maker is kind else maker
                made: type = maker.__new__(kind, name, bases, namespace)
                return made
            how = {"metaclass": kind}
            return types.new_class(name, bases, how, lambda made: made.update(namespace))
        finally:
            if is_sent:
                type.__setattr__(hooked, "__init_subclass__", hook)


def make_enum(
    kind: Any, name: str, bases: tuple[type, ...], namespace: dict[str, Any], *how: Any
) -> type:
    """Return an enumeration with its members."""
    members, boundary = how
    prepared = kind.__prepare__(name, bases)
    for key, value in (*namespace.items(), *members):
        prepared[key] = value
    made: type = kind.__new__(kind, name, bases, prepared, boundary=boundary)
    return made


def is_code(value: Any) -> bool:
    """Return whether *value* is a function or class that goes by value where it has no name."""
    if type(value) is CACHED or isinstance(value, (FunctionType, type)):
        return not names.is_importable(value)
    return False


def definition(pickler: CodePickler, code: Any) -> tuple[Any, ...]:
    """Return how *code* is made, what then fills it, and with what: first its attributes."""
    if isinstance(code, type):
        make, args, *state = parts(pickler, code)
        return make, args, fill, state
    if type(code) is CACHED:
        make, args, *state = functions.parts_of_cached(code)
        return make, args, functions.fill_function, state
    make, args, attributes, *rest = functions.parts(pickler, code)
    attributes = {"__defaults__": None, "__kwdefaults__": None, **attributes}
    return make, args, functions.fill_function, (attributes, *rest)


def attributes_of(code: Any) -> dict[str, Any]:
    """Return the attributes that are set one by one where the code is the same."""
    if not isinstance(code, type):
        return functions.attributes_of(code) if isinstance(code, FunctionType) else {}
    slots = vars(code).get("__slots__", ())
    slots = {slots} if isinstance(slots, str) else set(slots)
    mangled = {f"_{code.__name__.lstrip('_')}{slot}" for slot in slots if slot.startswith("__")}
    left_out = _MADE_BY_TYPE | slots | mangled | _OF_CTYPES
    return {
        name: value
        for name, value in vars(code).items()
        if name not in left_out and type(value).__name__ != "CField"
    }


def parts_seen(code: Any) -> list[Any]:
    """Return the objects of which *code* consists, those apart that Python or libraries derive."""
    if isinstance(code, FunctionType):
        return functions.parts_seen(code)
    names_left_out = (*_MADE_BY_TYPE, "__annotations__")
    found: list[Any] = [*code.__bases__]
    for name, value in vars(code).items():
        if type(value) is FunctionType:
            found += [value, *functions.parts_seen(value)]
        elif name not in names_left_out:
            found.append(type(value) if name[:2] == name[-2:] == "__" else value)
    return found


def digest(code: Any) -> bytes:
    """Return a digest of the source of *code*, wherever it is compiled; empty for data."""
    if type(code) is CACHED:
        code = code.__wrapped__
    if isinstance(code, FunctionType):
        return functions.digest(code)
    known = _digests.get(code) if isinstance(code, type) else b""
    if known is None:
        bases = [each if names.is_importable(each) else digest(each) for each in code.__bases__]
        parts = [repr([code.__qualname__, bases]).encode("utf-8", "replace")]
        for name, value in sorted(vars(code).items()):
            plain = getattr(value, "__func__", getattr(value, "fget", value))
            is_inner = (
                isinstance(plain, type) and plain.__qualname__ == f"{code.__qualname__}.{name}"
            )
            if isinstance(plain, FunctionType) or is_inner:
                parts.append(name.encode() + digest(plain))
            elif name not in _MADE_BY_TYPE:
                parts.append(name.encode())
        known = _digests[code] = hashlib.sha256(b"\0".join(parts)).digest()
    return known


def note_digest(code: Any, known: bytes) -> None:
    """Have a class that came known as it was defined, whatever becomes of it here."""
    if isinstance(code, type):
        _digests[code] = known


def _stamp(cls: type) -> int:
    """Return a number that changes with the attributes of *cls*; large ones count by their ids."""
    return hash(
        tuple(
            (name, repr(value) if type(value) in _BY_VALUE else id(value))
            for name, value in vars(cls).items()
            if name not in _MADE_BY_TYPE
        )
    )


def _is_sent(cls: type) -> bool:
    """Return whether *cls* goes by value, with what its hooks have done."""
    return not names.is_importable(cls) and cls.__module__ != "_ctypes"


def _registered(cls: type) -> tuple[type, ...]:
    """Return the virtual subclasses of an abstract base class."""
    if "_abc_impl" not in vars(cls):
        return ()
    from abc import _get_dump  # type: ignore[attr-defined]

    found = (reference() for reference in _get_dump(cls)[0])
    return tuple(each for each in found if each is not None)


def _enum_state(cls: enum.EnumMeta) -> dict[str, Any]:
    """Return the attributes that the construction of an enumeration does not make."""
    return {
        name: value
        for name, value in attributes_of(cls).items()
        if name not in cls.__members__
        and name not in _MADE_BY_ENUM
        and not (
            name[:1] == name[-1:] == "_" != name[1:2]  # its own
            and not callable(getattr(value, "__func__", value))
        )
    }


def _reduce_builtin(cls: type) -> Reduction:
    for name, value in vars(types).items():
        if value is cls:
            return getattr, (types, name)
    ctypes = sys.modules.get("ctypes")
    for each in () if ctypes is None else (ctypes.Structure, ctypes.Union):
        if type(each) is cls:
            return type, (each,)
    return NotImplemented


# -- what stands in the body of a class, and pickle refuses or takes apart wrongly


def attribute_in(cls: type, name: str) -> Any:
    """Return the attribute that *cls* has itself: not what it stands for."""
    return vars(cls)[name]


def _reduce_method(pickler: CodePickler, method: MethodType) -> Reduction:
    """Return a bound method; of a class that is being built, which has no attributes yet."""
    owner = method.__self__
    if isinstance(owner, type) and names.by_reference(owner) is None:
        return MethodType, (method.__func__, owner)
    return NotImplemented


def _reduce_sentinel(pickler: CodePickler, each: object) -> Reduction:
    for name in _SENTINELS:
        if vars(dataclasses).get(name) is each:
            return getattr, (dataclasses, name)
    return NotImplemented


def _reduce_typing(pickler: CodePickler, each: Any) -> Reduction:
    """Return a type variable or a ``NewType``, which pickle knows by name alone."""
    module = each.__module__
    if module not in names.MAIN and names.find(module, each.__name__) is each:
        return NotImplemented
    reference = pickler.reference(each)
    if reference is not None:
        return reference
    if isinstance(each, typing.NewType):
        return typing.NewType, (each.__name__, each.__supertype__)
    how = ("bound", "covariant", "contravariant")
    given = {name: getattr(each, f"__{name}__") for name in how}
    return functools.partial(typing.TypeVar, **given), (each.__name__, *each.__constraints__)


def _reduce_descriptor(pickler: CodePickler, each: Any) -> Reduction:
    return attribute_in, (each.__objclass__, each.__name__)


#: how kinds of parts are reduced that a class may have in its body, or hand out
reducers: dict[type, Any] = {
    type: reduce_class,
    MethodType: _reduce_method,
    property: lambda _, each: (property, (each.fget, each.fset, each.fdel, each.__doc__)),
    **dict.fromkeys((staticmethod, classmethod), lambda _, each: (type(each), (each.__func__,))),
    functools.cached_property: lambda _, each: (  # its lock (until Python 3.12) stays behind
        functools.cached_property,
        (each.func,),
        {"attrname": each.attrname},
    ),
    **dict.fromkeys((typing.NewType, typing.TypeVar), _reduce_typing),
    **{type(vars(dataclasses)[name]): _reduce_sentinel for name in _SENTINELS},
    super: lambda _, each: (super, (each.__thisclass__, each.__self__)),
    types.GetSetDescriptorType: _reduce_descriptor,
    types.MemberDescriptorType: _reduce_descriptor,
    types.MappingProxyType: lambda _, each: (types.MappingProxyType, (dict(each),)),
    **{
        type(view({})): lambda _, each, view=view: (view, (dict(each.mapping),))
        for view in (dict.keys, dict.values, dict.items)
    },
}
