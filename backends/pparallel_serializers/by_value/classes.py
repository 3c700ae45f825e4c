"""Classes by value, and how a process knows that two of them are one.

A class that has a name in the script goes by that name. Any other carries an id: the process that
defined it finds its own class by that id, every other builds the class once and finds it by that id
later.

Source: cloudpickle (cloudpickle/cloudpickle.py) for making a class bare and filling it afterwards.
"""

from __future__ import annotations

import enum
import hashlib
import sys
import types
import uuid
import weakref
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from pparallel_serializers.by_value import functions, names, namespaces, scripts

if TYPE_CHECKING:
    from pparallel_serializers.by_value.pickler import CodePickler
    from pparallel_serializers.outofband import Reduction

_HEAP_TYPE = 1 << 9  #: set in ``__flags__`` of classes that are made at run time
#: what a class gets from its construction, and (the last one) from being pickled
_MADE_BY_TYPE = frozenset(
    {"__dict__", "__weakref__", "__module__", "__qualname__", "__slots__", "_abc_impl"}
    | {"__slotnames__"}
)
_MADE_BY_ENUM = frozenset({"__new__", "__reduce_ex__", "_generate_next_value_"})
_MADE_BY_ENUM |= {"__new_member__", "_new_member_", "_member_type_"}
_OF_CTYPES = frozenset({"_fields_", "_pack_"})
_READ_EARLY = ("__slots__", "__orig_bases__", *_OF_CTYPES)  #: while a class is made
_BY_VALUE = (int, float, complex, str, bytes, bool, type(None))


class Identity:
    """What a class is known by, in all processes.

    Attributes:
        uid: the same wherever the class is built.
        built_here: the class came from elsewhere.
        version: how often its definer was seen to have changed it.
        seen: its attributes when its definer last looked; large ones by their ids.
    """

    __slots__ = ("built_here", "seen", "uid", "version")

    def __init__(self, uid: str, built_here: bool) -> None:
        self.uid, self.built_here = uid, built_here
        self.version = -1 if built_here else 0
        self.seen: dict[str, Any] | None = None


_identities: weakref.WeakKeyDictionary[type, Identity] = weakref.WeakKeyDictionary()
_classes: weakref.WeakValueDictionary[str, type] = weakref.WeakValueDictionary()
_digests: weakref.WeakKeyDictionary[type, bytes] = weakref.WeakKeyDictionary()


def reduce_class(pickler: CodePickler, cls: type) -> Reduction:
    """Return *cls* by name where the receiver can find it, by value elsewhere."""
    reference = names.by_reference(cls)
    if reference is not None:
        return reference
    if not cls.__flags__ & _HEAP_TYPE:
        return _reduce_builtin(cls)
    held = scripts.holding(cls)
    if held is not None:
        if not pickler.defines(*held):
            return pickler.named(*held)
        pickler.need(held[0], namespaces.named_in(_annotations(cls), held[0].namespace))
    if isinstance(cls, enum.EnumMeta):
        how: tuple[Any, ...] = (make_enum, *_enum_parts(cls))
        attributes = _enum_state(cls)
        rest: Any = _member_states(cls)
    else:
        how = (make_class, *_class_parts(cls))
        attributes = {**attributes_of(cls), **pickler.placeholders}
        rest = _registered(cls)
    if held is not None and held[1] == pickler.root:
        where = (held[0].sent_uid(), held[1], digest(cls))
        return pickler.split(define_class, (*where, *how), fill_defined, (attributes, rest))
    identity = _identity(cls)
    with scripts.lock:
        state = (_version(cls, identity), attributes, rest)
    return find_class, (identity.uid, *how), state, None, None, fill_class


def find_class(uid: str, make: Callable[..., type], *how: Any) -> type:
    """Return the class of this *uid*, or a new one."""
    with scripts.lock:
        known = _classes.get(uid)
        if known is None:
            known = _classes[uid] = make(*how)
            _identities[known] = Identity(uid, built_here=True)
        return known


def fill_class(cls: type, state: tuple[int, dict[str, Any], Any]) -> None:
    """Give *cls* its attributes, unless it is this process's own or has them already."""
    version, attributes, rest = state
    identity = _identities.get(cls)
    if identity is None or not identity.built_here or identity.version >= version:
        return
    _fill(cls, attributes, rest)
    identity.version = version


def define_class(uid: str, name: str, wanted: bytes, make: Callable[..., type], *how: Any) -> type:
    """Return the class that is to have *name* in a script: the one it has, or a new one."""
    made: type = scripts.define(
        uid,
        name,
        lambda own: isinstance(own, type) and digest(own) == wanted,
        lambda: make(*how),
    )
    _digests[made] = wanted  # as it was defined, whatever becomes of it here
    return made


def fill_defined(cls: type, state: tuple[dict[str, Any], Any]) -> None:
    """Fill a new class; of one that was here set the attributes that its sender changed."""
    attributes, rest = state
    if scripts.is_kept():
        attributes = {
            key: each for key, each in attributes.items() if scripts.is_changed(key, each)
        }
    _fill(cls, attributes, rest)


def _fill(cls: type, attributes: dict[str, Any], rest: Any) -> None:
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
    hooked = next((each for each in _ancestors(bases) if "__init_subclass__" in vars(each)), object)
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


def parts_of(cls: type) -> list[Any]:
    """Return the objects of which *cls* consists, those apart that Python or libraries derive."""
    names_left_out = (*_MADE_BY_TYPE, "__annotations__")
    found: list[Any] = [*cls.__bases__]
    for name, value in vars(cls).items():
        if type(value) is FunctionType:
            found += [value, *functions.parts_of(value)]
        elif name not in names_left_out:
            found.append(type(value) if name[:2] == name[-2:] == "__" else value)
    return found


def reduce_method(pickler: CodePickler, method: MethodType) -> Reduction:
    """Return a bound method; of a class that is being built, which has no attributes yet."""
    owner = method.__self__
    if isinstance(owner, type) and names.by_reference(owner) is None:
        return MethodType, (method.__func__, owner)
    return NotImplemented


def digest(cls: type) -> bytes:
    """Return a digest of what the class statement says, wherever it is compiled."""
    known = _digests.get(cls)
    if known is None:
        bases = [each if names.is_importable(each) else digest(each) for each in cls.__bases__]
        parts = [repr([cls.__qualname__, bases]).encode("utf-8", "replace")]
        for name, value in sorted(vars(cls).items()):
            plain = getattr(value, "__func__", getattr(value, "fget", value))
            if isinstance(plain, FunctionType):
                parts.append(name.encode() + functions.digest(plain))
            elif isinstance(plain, type) and plain.__qualname__ == f"{cls.__qualname__}.{name}":
                parts.append(name.encode() + digest(plain))
            elif name not in _MADE_BY_TYPE:
                parts.append(name.encode())
        known = _digests[cls] = hashlib.sha256(b"\0".join(parts)).digest()
    return known


def _identity(cls: type) -> Identity:
    with scripts.lock:
        known = _identities.get(cls)
        if known is None:
            known = _identities[cls] = Identity(uuid.uuid4().hex, built_here=False)
            _classes[known.uid] = cls
        return known


def _version(cls: type, identity: Identity) -> int:
    """Return the version of *cls* after a look at whether its definer has changed it."""
    if identity.built_here:
        return identity.version
    # Ids of large values only: holding the values would keep the class alive for ever.
    now = {
        name: value if isinstance(value, _BY_VALUE) else id(value)
        for name, value in vars(cls).items()
        if name not in _MADE_BY_TYPE
    }
    if identity.seen != now:
        identity.seen = now
        identity.version += 1
    return identity.version


def _class_parts(cls: type) -> tuple[Any, ...]:
    namespace: dict[str, Any] = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    for name in _READ_EARLY:
        if name in vars(cls):
            namespace[name] = vars(cls)[name]
    return type(cls), cls.__name__, cls.__bases__, namespace


def attributes_of(cls: type) -> dict[str, Any]:
    """Return what :func:`make_class` does not give the new class."""
    slots = vars(cls).get("__slots__", ())
    slots = {slots} if isinstance(slots, str) else set(slots)
    mangled = {f"_{cls.__name__.lstrip('_')}{slot}" for slot in slots if slot.startswith("__")}
    left_out = _MADE_BY_TYPE | slots | mangled | _OF_CTYPES
    return {
        name: value
        for name, value in vars(cls).items()
        if name not in left_out and type(value).__name__ != "CField"
    }


def _annotations(cls: type) -> dict[str, Any]:
    found: dict[str, Any] = vars(cls).get("__annotations__", {})
    return found


def _is_sent(cls: type) -> bool:
    """Return whether *cls* goes by value, with what its hooks have done."""
    return not names.is_importable(cls) and cls.__module__ != "_ctypes"


def _ancestors(bases: tuple[Any, ...]) -> list[type]:
    """Return the classes in the order in which attributes are looked up."""
    return [each for base in bases if isinstance(base, type) for each in base.__mro__]


def _registered(cls: type) -> tuple[type, ...]:
    """Return the virtual subclasses of an abstract base class."""
    if "_abc_impl" not in vars(cls):
        return ()
    from abc import _get_dump  # type: ignore[attr-defined]

    found = (reference() for reference in _get_dump(cls)[0])
    return tuple(each for each in found if each is not None)


def _enum_parts(cls: enum.EnumMeta) -> tuple[Any, ...]:
    namespace = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    members: dict[str, Any] = dict(cls.__members__)
    values = tuple((name, member._value_) for name, member in members.items())
    boundary = vars(cls).get("_boundary_")
    return type(cls), cls.__name__, cls.__bases__, namespace, values, boundary


def _member_states(cls: enum.EnumMeta) -> dict[str, Any]:
    members: dict[str, Any] = dict(cls.__members__)
    return {name: vars(each) for name, each in members.items()}


def _enum_state(cls: enum.EnumMeta) -> dict[str, Any]:
    return {
        name: value
        for name, value in attributes_of(cls).items()
        if name not in cls.__members__ and not _is_made_by_enum(name, value)
    }


def _is_made_by_enum(name: str, value: object) -> bool:
    if name in _MADE_BY_ENUM:
        return True
    is_private = name.startswith("_") and name.endswith("_") and not name.startswith("__")
    return is_private and not callable(getattr(value, "__func__", value))


def _reduce_builtin(cls: type) -> Reduction:
    for name, value in vars(types).items():
        if value is cls:
            return getattr, (types, name)
    ctypes = sys.modules.get("ctypes")
    for each in () if ctypes is None else (ctypes.Structure, ctypes.Union):
        if type(each) is cls:
            return type, (each,)
    return NotImplemented
