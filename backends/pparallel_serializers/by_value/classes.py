"""Classes by value, and how a process knows that two of them are one.

A class carries an id. The process that defined it finds its own class by that id, every other
builds the class once and finds it by that id later. A class of a script that several processes run
(ranks under torchrun) is recognised by name and digest instead, so each uses its own.

Source: cloudpickle (cloudpickle/cloudpickle.py) for making a class bare and filling it afterwards.
"""

from __future__ import annotations

import enum
import hashlib
import threading
import types
import uuid
import weakref
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any

from pparallel_serializers.by_value import functions, names

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


_lock = threading.RLock()
_identities: weakref.WeakKeyDictionary[type, Identity] = weakref.WeakKeyDictionary()
_classes: weakref.WeakValueDictionary[str, type] = weakref.WeakValueDictionary()
_digests: weakref.WeakKeyDictionary[type, bytes] = weakref.WeakKeyDictionary()


def reduce_class(pickler: CodePickler, cls: type) -> Reduction:
    """Return *cls* by name where the receiver can import it, by value elsewhere."""
    reference = names.by_reference(cls)
    if reference is not None:
        return reference
    if not cls.__flags__ & _HEAP_TYPE:
        return _reduce_builtin(cls)
    identity = _identity(cls)
    with _lock:
        version = _version(cls, identity)
    own = cls.__module__ in names.MAIN and names.find("__main__", cls.__qualname__) is cls
    known_by = (identity.uid, cls.__qualname__, digest(cls) if own else b"")
    state: tuple[int, dict[str, Any], Any]
    if isinstance(cls, enum.EnumMeta):
        make: Callable[..., type] = make_enum
        how = _enum_parts(cls)
        state = (version, _enum_state(cls), _member_states(cls))
    else:
        make = make_class
        how = _class_parts(cls)
        state = (version, _state(cls), _registered(cls))
    return find_class, (*known_by, make, how), state, None, None, fill_class


def find_class(
    uid: str, qualname: str, wanted: bytes, make: Callable[..., type], how: tuple[Any, ...]
) -> type:
    """Return the class of this *uid*, or of this definition in ``__main__``, or a new one."""
    with _lock:
        known = _classes.get(uid)
        if known is not None:
            return known
        own = names.find("__main__", qualname) if wanted else None
        if isinstance(own, type) and digest(own) == wanted:
            cls: type = own
        else:
            cls = make(*how)
            _identities[cls] = Identity(uid, built_here=True)
        _classes[uid] = cls
        return cls


def fill_class(cls: type, state: tuple[int, dict[str, Any], Any]) -> None:
    """Give *cls* its attributes, unless it is this process's own or has them already."""
    version, attributes, rest = state
    identity = _identities.get(cls)
    if identity is None or not identity.built_here or identity.version >= version:
        return
    for name, value in attributes.items():
        type.__setattr__(cls, name, value)
    if isinstance(cls, enum.EnumMeta):
        members: dict[str, Any] = dict(cls.__members__)
        for name, member_state in rest.items():
            members[name].__dict__.update(member_state)
    else:
        for subclass in rest:
            cls.register(subclass)  # type: ignore[attr-defined]
    identity.version = version


def make_class(kind: type, name: str, bases: tuple[Any, ...], namespace: dict[str, Any]) -> type:
    """Return a class that :func:`fill_class` has still to fill."""
    if kind.__name__ == "_TypedDictMeta":  # it would refuse the bases that it gave
        return type.__new__(kind, name, bases, namespace)
    return types.new_class(name, bases, {"metaclass": kind}, lambda made: made.update(namespace))


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


def builtin_type(name: str) -> type:
    """Return a type that only the module ``types`` has a name for."""
    found: type = getattr(types, name)
    return found


def digest(cls: type) -> bytes:
    """Return a digest of what the class statement says, wherever it is compiled."""
    known = _digests.get(cls)
    if known is None:
        text = repr([cls.__qualname__, [base.__qualname__ for base in cls.__bases__]])
        parts = [text.encode("utf-8", "replace")]
        for name, value in sorted(vars(cls).items()):
            plain = getattr(value, "__func__", getattr(value, "fget", value))
            if isinstance(plain, FunctionType):
                parts.append(name.encode() + functions.digest(plain))
            elif name not in _MADE_BY_TYPE:
                parts.append(name.encode())
        known = _digests[cls] = hashlib.sha256(b"\0".join(parts)).digest()
    return known


def _identity(cls: type) -> Identity:
    with _lock:
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
    for name in ("__slots__", "__orig_bases__"):  # read while the class is made
        if name in vars(cls):
            namespace[name] = vars(cls)[name]
    return type(cls), cls.__name__, cls.__bases__, namespace


def _state(cls: type) -> dict[str, Any]:
    slots = vars(cls).get("__slots__", ())
    slots = {slots} if isinstance(slots, str) else set(slots)
    mangled = {f"_{cls.__name__.lstrip('_')}{slot}" for slot in slots if slot.startswith("__")}
    left_out = _MADE_BY_TYPE | slots | mangled
    return {name: value for name, value in vars(cls).items() if name not in left_out}


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
        for name, value in _state(cls).items()
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
            return builtin_type, (name,)
    return NotImplemented
