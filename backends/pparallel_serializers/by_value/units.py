"""The names of a script on their way out: each value, function or class is a unit of its own.

A function or a class of a script is referred to by name. The units of all the names that an
object uses, and of those that they use, go before it, each with the count of its changes; the
receiver (:mod:`pparallel_serializers.by_value.filling`) takes those that it lacks.

Names whose values share an object (``model`` and ``opt``) are one unit.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import itertools
import logging
import operator
import pathlib
import pickle
import sys
import time
import zlib
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any, NamedTuple, cast

from typing_extensions import Buffer

from pparallel.errors import SerializationError
from pparallel_serializers import outofband, refusals
from pparallel_serializers.by_value import names, scripts
from pparallel_serializers.by_value.classes import attributes_of, digest, is_code, parts_seen
from pparallel_serializers.by_value.functions import Named
from pparallel_serializers.by_value.pickler import (
    IMMUTABLE,
    CodePickler,
    Placeholder,
    UnitPickler,
    fresh,
)

Name = tuple[scripts.Script, str]

logger = logging.getLogger(__name__)

MARK = b"M"  #: the first byte of a stream with units; a pickle begins with another
INLINE = 1 << 14  #: bytes up to which a buffer goes into the first
SMALL, MOST = 1 << 16, 256  #: bytes and number of the bundles that are kept
TRIES = 3  #: of pickling a value that another thread changes meanwhile
LARGE, LONG = 1 << 20, 0.01  #: bytes and seconds of a value above which users are warned, once

_CONTAINERS = (bytearray, deque, dict, list, set)
_UNSHARED: tuple[type, ...] = (
    enum.Enum,
    logging.Logger,
    pathlib.PurePath,
    FunctionType,
    type,
    ModuleType,
)
_UNSHARED += (BuiltinFunctionType, MethodType)
_SHARED = ("ndarray", "SentStorage", "Generator")  #: types without a ``__dict__``
_PARTS = {*IMMUTABLE, CodeType, MethodType, classmethod, property, staticmethod}
_PARTS |= {MemberDescriptorType, GetSetDescriptorType, functools.cached_property}
#: attributes that Python or libraries derive from a class statement
_UNWATCHED = frozenset({"__annotations__", "__match_args__", "__parameters__", "__orig_bases__"})
_UNWATCHED |= {"__dataclass_fields__", "__dataclass_params__", "__wrapped__"}

_missing = object()
_versions = itertools.count(1)
_warned: set[str] = set()
#: by the names that something uses, the units of all that goes along, and what is sent of these
_bundles: dict[Any, tuple[list[Any], bytes, list[bytes]]] = {}


class Sent(NamedTuple):
    """A unit as it travels.

    Attributes:
        uid: of the script.
        names: its name, or those of a group.
        needed: those of them that are used, and do not just share an object with one that is.
        version: grows with each change at the sender.
        attributes: the version of each attribute of a function or class, 0 if it never changed.
        digest: of code; empty for data.
        origin: module and name of an object that an importable module has.
        is_placeholder: the value could not be pickled, and a placeholder is sent.
        frames: the value as bytes; ``None`` for each buffer that follows.
    """

    uid: str
    names: tuple[str, ...]
    needed: tuple[str, ...]
    version: int
    attributes: dict[str, int]
    digest: bytes
    origin: tuple[str, str] | None
    is_placeholder: bool
    frames: list[bytes | None]


@dataclasses.dataclass(eq=False, slots=True)
class Unit:
    """A name of a script, or several that share an object, as they were sent last.

    Attributes:
        value: the object, or those of a group.
        sent: how it travels.
        frames: the value as bytes.
        needs: the names that it uses, and whether it cannot be made without.
        fingerprint: shows without pickling again whether something has changed; ``None``: cannot.
        shared: objects that other names may refer to, by their ids; kept, so that ids last.
        attributes: of a function or class, each with its value, and the bytes of what may change
            in that.
    """

    value: Any
    sent: Sent
    frames: list[bytes]
    needs: dict[Name, bool]
    fingerprint: list[Any] | None
    shared: dict[int, Any] = dataclasses.field(default_factory=dict)
    attributes: dict[str, tuple[Any, bytes]] = dataclasses.field(default_factory=dict)


def joined(pickler: CodePickler, roots: dict[Name, bool], frames: Sequence[Buffer]) -> list[Buffer]:
    """Return *frames* behind the units of the names that they use.

    Raises:
        SerializationError: a function or class among *roots* cannot be pickled.
    """
    # Without a lock, as values have hooks that may wait: at worst two threads do the same work.
    sent, more = _Gathering(pickler).bundle(roots)
    if not sent:
        return list(frames)
    header = pickle.dumps((scripts.token(), sent, placed(frames)), 5)
    return [MARK + header, *_long(frames), *more]


def placed(frames: Sequence[Buffer]) -> list[bytes | None]:
    """Return *frames*, ``None`` for each that is a buffer of its own."""
    return [bytes(each) if memoryview(each).nbytes <= INLINE else None for each in frames]


def _long(frames: Sequence[Any]) -> list[Any]:
    return [each for each in frames if memoryview(each).nbytes > INLINE]


def same_as_sent(script: scripts.Script, sent: Sent, frames: Sequence[Buffer]) -> bool:
    """Return whether the values here, which a fork inherited, are those that were sent."""
    values = {name: script.namespace[name] for name in sent.names}
    value = values if len(values) > 1 else values[sent.names[0]]
    try:
        own = _Gathering(UnitPickler()).pickled(script, sent.names, value)[0]
    except Exception:  # noqa: BLE001 - whatever the value's own hooks raise
        return sent.is_placeholder
    return own == [bytes(each) for each in frames]


class _Gathering:
    """Finds the units of the names that something uses, each as it is now."""

    def __init__(self, pickler: CodePickler) -> None:
        self._recurse, self._carries, self._share = pickler.recurse, pickler.carries, pickler.share
        self._table = getattr(pickler, "dispatch_table", None)
        self._found: dict[Name, Unit] = {}
        self._pickler: UnitPickler | None = None
        self._values: dict[scripts.Script, dict[int, tuple[str, Any]]] = {}

    def bundle(self, roots: dict[Name, bool]) -> tuple[bytes, list[bytes]]:
        """Return the units, code first, as they travel, and those of their frames that follow."""
        self._gather(roots, roots)
        key = (self._share, *roots.items())
        known = [*self._found.values(), *(len(script.sent) for script, _ in roots)]
        last = _bundles.get(key)
        if last is not None and last[0] == known:
            return last[1:]
        needed = {*self._found}
        self._gather([each for name in needed for each in self._sharing(name)], {})
        units = [(script, unit) for (script, _), unit in self._found.items() if unit.sent.digest]
        units += self._groups()
        travelling = []
        for script, unit in units:
            used = tuple(name for name in unit.sent.names if (script, name) in needed)
            travelling.append(tuple(unit.sent._replace(needed=used)))
        sent = pickle.dumps(travelling, 5) if units else b""
        more = [frame for _, unit in units for frame in _long(unit.frames)]
        if sum(len(frame) for _, unit in units for frame in unit.frames) < SMALL:
            if len(_bundles) >= MOST:
                _bundles.clear()
            known[len(known) - len(roots) :] = [len(script.sent) for script, _ in roots]
            _bundles[key] = known, sent, more
        return sent, more

    def _gather(self, pending: Iterable[Name], roots: dict[Name, bool]) -> None:
        pending = list(pending)
        for key in pending:
            script, name = key
            is_left_out = self._carries == "own" and (
                name in script.received or name in scripts.inherited
            )
            if key in self._found or name not in script.namespace or is_left_out:
                continue
            unit = self._found[key] = self._unit(script, name, is_root=roots.get(key, False))
            pending += unit.needs
            if not roots:
                pending += self._sharing(key)

    def _sharing(self, key: Name) -> list[Name]:
        """Return the names that were sent before and share an object with that of *key*."""
        script, shared = key[0], self._found[key].shared
        return [
            (script, name)
            for name, each in ([*script.sent.items()] if shared else ())
            if isinstance(name, str) and not each.shared.keys().isdisjoint(shared)
        ]

    def _unit(self, script: scripts.Script, name: str, *, is_root: bool) -> Unit:
        value = script.namespace[name]
        key = (name, self._share) if self._share else name  # by reference they are other bytes
        last: Unit | None = script.sent.get(key)
        fingerprint = _fingerprint(value)
        is_same = last is not None and last.value is value and not last.sent.is_placeholder
        if last is not None and is_same and _match(last.fingerprint, fingerprint):
            return last
        if fingerprint is not None and not all(map(_is_settled, fingerprint)):
            fingerprint = None
        began = time.perf_counter()
        how, frames, pickler = self._framed(script, name, value, last, is_root=is_root)
        if last is not None and fingerprint is None:
            _warn(name, frames, time.perf_counter() - began)
        needs = {} if pickler is None else dict(pickler.needed)
        code = how[0]
        is_data = not code and type(value) not in IMMUTABLE
        attributes = {
            each: (held, b"" if each in _UNWATCHED else self._content(script, held))
            for each, held in (attributes_of(value).items() if code else ())
        }
        with scripts.lock:
            last = cast("Unit | None", script.sent.get(key))  # another thread may have been quicker
            is_same = last is not None and (last.value is value or not is_data)
            if last is not None and is_same and last.frames == frames:
                last.value, last.fingerprint, last.needs = value, fingerprint, needs
                return last
            version = next(_versions)
            changes = _changes(attributes, last, version)
            sent = Sent(script.sent_uid(), (name,), (), version, changes, *how, placed(frames))
            shared = _shared(pickler) if is_data and pickler is not None else {}
            unit = Unit(value, sent, frames, needs, fingerprint, shared, attributes)
            script.sent[key] = unit
            return unit

    def _framed(
        self, script: scripts.Script, name: str, value: Any, last: Unit | None, *, is_root: bool
    ) -> tuple[tuple[bytes, Any, bool], list[bytes], UnitPickler | None]:
        """Return digest, origin, is_placeholder; the frames; and their pickler if of *value*."""
        code = digest(value) if is_code(value) else b""
        origin, refusal, pickler = None, None, None
        if not code and (last is None or last.value is value):
            origin = _origin(value) if last is None else last.sent.origin
        try:
            frames, pickler = self._whole(script, name, value, is_definition=bool(code))
        except Exception as error:
            refusal = _refusal(name, value, error)
            if is_root and code:
                raise SerializationError(*refusal) from error
        if origin is not None and (pickler is None or pickler.begins_anew):
            return (b"", origin, False), [pickle.dumps(Named(names.resolve, *origin), 5)], None
        if refusal is not None:
            return (b"", None, True), [pickle.dumps(Placeholder(*refusal), 5)], None
        return (code, origin, False), frames, pickler

    def _whole(
        self, script: scripts.Script, name: str, value: Any, *, is_definition: bool
    ) -> tuple[list[bytes], UnitPickler]:
        """Return a pickled value; of a class with placeholders for attributes that cannot be."""
        try:
            return self.pickled(script, (name,), value, is_definition=is_definition)
        except Exception:
            if not isinstance(value, type):
                raise
        refused = {}
        for attribute, each in attributes_of(value).items():
            try:
                self.pickled(script, (name,), each)
            except Exception as error:  # noqa: BLE001 - whatever the value's own hooks raise
                refused[attribute] = Placeholder(*_refusal(f"{name}.{attribute}", each, error))
        return self.pickled(script, (name,), value, refused, is_definition=is_definition)

    def _content(self, script: scripts.Script, value: Any) -> bytes:
        if type(value) is FunctionType:  # of a class
            value = value.__defaults__, value.__kwdefaults__
        if not isinstance(value, (*_CONTAINERS, tuple)):
            return b""
        try:
            return b"".join(self.pickled(script, (), value)[0])
        except Exception:  # noqa: BLE001 - as unchanged counts what cannot be compared
            return b""

    def pickled(
        self,
        script: scripts.Script,
        group: tuple[str, ...],
        value: Any,
        placeholders: Mapping[str, Any] = CodePickler.placeholders,
        *,
        is_definition: bool = False,
    ) -> tuple[list[bytes], UnitPickler]:
        """Return the frames of the value of a name, or of several by name; and their pickler."""
        for table in (fresh, outofband.reducers):
            if table.waiting:
                table.look()
        for attempt in range(1, TRIES + 1):
            pickler = self._pickler or UnitPickler(self._share)
            self._pickler = None  # a hook of the value may have something pickled, too
            pickler.clear()
            if self._table is not None:
                pickler.dispatch_table = self._table
            pickler.recurse, pickler.placeholders = self._recurse, placeholders
            pickler.script, pickler.group = script, group
            pickler.values = self._named_values(script)
            try:
                (pickler.define if is_definition else pickler.dump)(value)
            except RuntimeError as error:
                if "changed size during iteration" in str(error) and attempt < TRIES:
                    continue
                raise
            break
        self._pickler = pickler
        return [bytes(each) for each in pickler.written()], pickler

    def _named_values(self, script: scripts.Script) -> dict[int, tuple[str, Any]]:
        if script in self._values:
            return self._values[script]
        names_now, values_now = [*script.namespace], [*script.namespace.values()]
        names_then, values_then, found = script.named_values
        is_same = names_then == names_now and len(values_then) == len(values_now)
        if not (is_same and all(map(operator.is_, values_then, values_now))):
            found = {
                id(value): (name, value)
                for name, value in [*zip(names_now, values_now, strict=False)][::-1]  # first counts
                if type(value) not in IMMUTABLE and not isinstance(value, (tuple, frozenset))
            }
            script.named_values = names_now, values_now, found
        self._values[script] = found
        return found

    def _groups(self) -> list[tuple[scripts.Script, Unit]]:
        """Return the units of data; those whose values share an object are one."""
        groups: list[tuple[set[Any], list[Name]]] = []
        for key, unit in self._found.items():
            if unit.sent.digest:
                continue
            shared = () if unit.sent.is_placeholder else unit.shared
            circle = [each for each in self._needed_by(key) if key in self._needed_by(each)]
            marks, keys = {key, *circle, *((key[0], each) for each in shared)}, [key]
            for each in [each for each in groups if not each[0].isdisjoint(marks)]:
                groups.remove(each)
                marks, keys = marks | each[0], keys + each[1]
            groups.append((marks, keys))
        return [self._group(keys[0][0], sorted(name for _, name in keys)) for _, keys in groups]

    def _needed_by(self, key: Name) -> list[Name]:
        """Return the data without which that of a name cannot be made."""
        needed: list[Name] = []
        for each in itertools.chain([key], needed):
            for other, is_needed in self._found[each].needs.items():
                unit = self._found.get(other)
                if is_needed and unit and not unit.sent.digest and other not in needed:
                    needed.append(other)
        return needed

    def _group(self, script: scripts.Script, group: list[str]) -> tuple[scripts.Script, Unit]:
        members = [self._found[script, name] for name in group]
        if len(members) == 1:
            return script, members[0]
        key, fingerprint = (*group, self._share), [each.sent.version for each in members]
        last: Unit | None = script.sent.get(key)
        if last is None or last.fingerprint != fingerprint:
            value = {name: script.namespace[name] for name in group}
            frames = self.pickled(script, tuple(group), value)[0]
            how: Any = (max(fingerprint), {}, b"", None, False, placed(frames))
            sent = Sent(script.sent_uid(), tuple(group), (), *how)
            last = script.sent[key] = Unit(value, sent, frames, {}, fingerprint)
        return script, last


def _refusal(name: str, value: Any, error: Exception) -> tuple[str, str]:
    """Return the name of *value*, which cannot be pickled, for messages; and the reason."""
    refused = refusals.dump_refusal(value, error)
    return f"global {name}{refused.path or ''} of __main__ ({refused.what})", refused.why


def _changes(
    attributes: dict[str, tuple[Any, bytes]], last: Unit | None, version: int
) -> dict[str, int]:
    """Return the versions of the attributes of code: this one where they have changed."""
    if last is None:
        return dict.fromkeys(attributes, 0)
    found = {}
    for name, (value, content) in attributes.items():
        known, content_then = last.attributes.get(name, (_missing, None))
        is_same = content == content_then and _is_equal(known, value)
        found[name] = last.sent.attributes.get(name, 0) if is_same else version
    return found


def _fingerprint(value: Any) -> list[Any] | None:
    """Return by what to see that *value*, the same object, has not changed; ``None``: nothing."""
    kind = type(value)
    if kind in IMMUTABLE or kind in fresh:
        return []
    if kind is FunctionType or isinstance(value, type):
        return parts_seen(value) if is_code(value) else []
    torch = sys.modules.get("torch")
    if torch is None or kind is not getattr(torch, "Tensor", None):
        return None
    try:
        content = memoryview(value.detach().numpy()).cast("B")
    except (RuntimeError, TypeError):  # on a GPU, with gaps, of a kind that numpy lacks
        return None
    # The version does not count what is written by numpy.
    how = value.requires_grad, value.is_shared(), tuple(value.shape)
    return [value._version, how, zlib.crc32(content)]


def _is_settled(part: Any) -> bool:
    """Return whether a part of a function or class is the same as long as it is that object."""
    if type(part) is tuple:
        return all(map(_is_settled, part))
    return type(part) in _PARTS or isinstance(part, (FunctionType, type))


def _match(before: list[Any] | None, now: list[Any] | None) -> bool:
    if before is None or now is None or len(before) != len(now):
        return False
    return all(map(operator.is_, before, now)) or all(
        a is b or (type(a) in (int, tuple) and a == b) for a, b in zip(before, now, strict=True)
    )


def _is_equal(before: Any, now: Any) -> bool:
    if before is now:
        return True
    if type(before) is not type(now):
        return False
    if isinstance(now, FunctionType):
        return digest(before) == digest(now)
    plain = getattr(now, "__func__", getattr(now, "fget", None))
    if isinstance(plain, FunctionType):
        return _is_equal(getattr(before, "__func__", getattr(before, "fget", None)), plain)
    if isinstance(now, (*_CONTAINERS, tuple)):  # what is in there is compared as bytes
        return True
    return type(now) in IMMUTABLE and bool(before == now)


def _shared(pickler: UnitPickler) -> dict[int, Any]:
    """Return those objects of a pickled value that other names may refer to."""
    inside = [each for _, each in pickler.memo.copy().values() if type(each) not in IMMUTABLE]
    found = {id(each): each for each in inside if _may_be_shared(each)}
    return {**found, **{address: sent for (address, _), sent in pickler.stores.items()}}


def _may_be_shared(obj: Any) -> bool:
    if isinstance(obj, _UNSHARED):
        return False
    if isinstance(obj, _CONTAINERS) or type(obj) in fresh:
        return True
    if hasattr(obj, "__dataclass_params__") and obj.__dataclass_params__.frozen:
        return False
    # Not by looking at ``__dict__``, which makes one.
    return type(obj).__dictoffset__ != 0 or type(obj).__name__ in _SHARED


def _origin(value: Any) -> tuple[str, str] | None:
    """Return module and name of *value* if an importable module has it under some name."""
    kind = type(value)
    is_code = isinstance(value, (FunctionType, type))
    if kind in IMMUTABLE or kind.__module__ in names.MAIN or is_code:
        return None
    for name, module in [*sys.modules.items()]:
        if name in names.MAIN or getattr(module, "__spec__", None) is None:
            continue
        found = getattr(module, "__dict__", {})
        if any(map(operator.is_, [*found.values()], itertools.repeat(value))):
            attribute = next((key for key, each in [*found.items()] if each is value), None)
            if attribute is not None:
                return name, attribute
    return None


def _warn(name: str, frames: Iterable[bytes], took: float) -> None:
    size = sum(map(len, frames))
    if size > LARGE and took > LONG and name not in _warned:
        _warned.add(name)
        logger.warning(
            "global %s of __main__ takes %.1f MB and %.0f ms to pickle, with each call of a "
            "function that names it: pass it by a pool's initializer, or make it there",
            name,
            size / 1e6,
            took * 1e3,
        )
