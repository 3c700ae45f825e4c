"""The names of a script on their way out: each value, function or class is a unit of its own.

What refers to a function or a class of a script does so by name. The units of all the names that
it uses, and of those that they use, go before it, each with the count of its changes; the receiver
(:mod:`pparallel_serializers.by_value.filling`) takes those that it lacks.

Names whose values share an object (``model`` and ``opt``) are one unit.
"""

from __future__ import annotations

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
from collections.abc import Iterable, Sequence
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from typing_extensions import Buffer

from pparallel.errors import SerializationError
from pparallel.runtime.interrupts import raise_interrupt
from pparallel_serializers import outofband, refusals
from pparallel_serializers.by_value import classes, foreign, fresh, functions, names, scripts
from pparallel_serializers.by_value.pickler import IMMUTABLE, Named, UnitPickler

if TYPE_CHECKING:
    from pparallel_serializers.by_value.pickler import CodePickler

logger = logging.getLogger(__name__)

MARK = b"M"  #: what begins so carries units; a pickle begins with another byte
INLINE = 1 << 14  #: bytes up to which what is one buffer goes into the first
SMALL, MOST = 1 << 16, 256  #: bytes and number of what is kept to see that nothing has changed
TRIES = 3  #: of pickling a value that another thread changes meanwhile
LARGE, LONG = 1 << 20, 0.01  #: bytes and seconds of a value above which users are warned, once

_CONTAINERS = (bytearray, deque, dict, list, set)
_UNSHARED: tuple[type, ...] = (enum.Enum, logging.Logger, pathlib.PurePath, FunctionType, type)
_UNSHARED += (ModuleType, BuiltinFunctionType, MethodType)
_PARTS = {*IMMUTABLE, CodeType, MethodType, classmethod, property, staticmethod}
_PARTS |= {MemberDescriptorType, GetSetDescriptorType, functools.cached_property}
_versions = itertools.count(1)
_warned: set[str] = set()


class Unit:
    """A name of a script, or several that share an object, as they were sent last.

    Attributes:
        value: the object, or those of a group.
        frames: what it is pickled as.
        needs: the names that it uses, and whether it cannot be made without.
        version: grows with each change.
        digest: of code; empty for data.
        fingerprint: shows without pickling again whether something has changed; ``None``: cannot.
        shared: objects that other names may refer to, by their ids; kept, so that ids last.
        attributes: of a function or class, by attribute the version of its last change, 0 if there
            was none, its value, and the bytes of what may change in it.
        origin: module and name of an object that an importable module has.
        is_placeholder: the value could not be pickled, and a placeholder is sent.
        sent: how it travels, a :class:`Sent`, once it has.
    """

    def __init__(self, value: Any) -> None:
        self.value = value
        self.frames: list[bytes] = []
        self.needs: dict[tuple[scripts.Script, str], bool] = {}
        self.version = 0
        self.digest = b""
        self.fingerprint: list[Any] | None = None
        self.shared: dict[int, Any] = {}
        self.attributes: dict[str, tuple[int, Any, bytes]] = {}
        self.origin: tuple[str, str] | None = None
        self.is_placeholder = False
        self.sent: tuple[Any, ...] | None = None


class Sent(NamedTuple):
    """A unit as it travels.

    Attributes:
        uid: of the script.
        names: its name, or those of a group.
        needed: those of them that what follows uses.
        version: grows with each change at the sender.
        digest: of code; empty for data.
        attributes: the version of each attribute of a function or class.
        origin: module and name of an object that an importable module has.
        is_placeholder: it is a placeholder.
        frames: its bytes, or how many of the buffers that follow are its.
    """

    uid: str
    names: tuple[str, ...]
    needed: tuple[str, ...]
    version: int
    digest: bytes
    attributes: dict[str, int]
    origin: tuple[str, str] | None
    is_placeholder: bool
    frames: bytes | int


def joined(
    pickler: CodePickler, roots: dict[tuple[scripts.Script, str], bool], frames: list[Buffer]
) -> list[Buffer]:
    """Return *frames* behind the units of the names that they use.

    Raises:
        SerializationError: a function or class among *roots* cannot be pickled.
    """
    # Without a lock, as values have hooks that may wait: at worst two threads do the same work.
    gathering = _Gathering(pickler)
    bundle = gathering.unchanged(roots) or gathering.bundle(roots)
    if not bundle.sent:
        return frames
    header = pickle.dumps((scripts.token(), bundle.sent, _placed(frames)), 5)
    return [MARK + header, *bundle.frames, *(() if _is_short(frames) else frames)]


def is_code(value: Any) -> bool:
    """Return whether *value* is a function or class that goes by value where it has no name."""
    if type(value) is foreign.CACHED or isinstance(value, (FunctionType, type)):
        return not names.is_importable(value)
    return False


def digest(value: Any) -> bytes:
    """Return the digest of what *value* is defined by; empty for data."""
    if type(value) is foreign.CACHED:
        value = value.__wrapped__
    if isinstance(value, FunctionType):
        return functions.digest(value)
    return classes.digest(value) if isinstance(value, type) else b""


def same_as_sent(script: scripts.Script, sent: Sent, frames: Sequence[Buffer]) -> bool:
    """Return whether the values here, which a fork inherited, are those that were sent."""
    gathering = _Gathering(UnitPickler())
    values = {name: script.namespace[name] for name in sent.names}
    value = values if len(values) > 1 else values[sent.names[0]]
    try:
        own = gathering.pickled(script, sent.names, value)[0]
    except Exception as error:  # noqa: BLE001 - whatever the value's own hooks raise
        raise_interrupt(error)
        return sent.is_placeholder
    return own == [bytes(each) for each in frames]


class _Bundle(NamedTuple):
    """The units that something used when it was sent last.

    Attributes:
        sent: the units, as they travel.
        frames: those of their frames that are not in there.
        settled: names with their values and fingerprints.
        others: names whose values show only pickled whether they have changed.
        content: these, pickled together.
    """

    sent: list[tuple[Any, ...]]
    frames: list[bytes]
    settled: list[tuple[scripts.Script, str, Any, list[Any]]]
    others: list[tuple[scripts.Script, str, Any]]
    content: list[bytes]


_bundles: dict[Any, _Bundle] = {}


class _Gathering:
    """Finds the units of the names that something uses, each as it is now."""

    def __init__(self, pickler: CodePickler) -> None:
        self._recurse, self._carries, self._share = pickler.recurse, pickler.carries, pickler.share
        self._table = getattr(pickler, "dispatch_table", None)
        self._found: dict[tuple[scripts.Script, str], Unit] = {}
        self._pickler: UnitPickler | None = None
        self._needed: dict[tuple[scripts.Script, str], None] = {}
        self._placeholders: dict[str, fresh.Placeholder] = {}
        self._values: dict[scripts.Script, dict[int, tuple[str, Any]]] = {}

    def unchanged(self, roots: dict[tuple[scripts.Script, str], bool]) -> _Bundle | None:
        """Return what was sent for the same names last, if nothing of it has changed since."""
        last = _bundles.get((self._recurse, self._share, self._carries, *roots.items()))
        if last is None or self._table is not None:
            return None
        for script, name, value, fingerprint in last.settled:
            if script.namespace.get(name) is not value:
                return None
            if not _match(fingerprint, _fingerprint(value)):
                return None
        if any(script.namespace.get(name) is not value for script, name, value in last.others):
            return None
        return last if self._content_of(last.others) == last.content else None

    def bundle(self, roots: dict[tuple[scripts.Script, str], bool]) -> _Bundle:
        """Return what is to be sent."""
        found = self.gather(roots)
        sent = [_sent(*each, self.needed(*each)) for each in found]
        more = [frame for *_, unit in found if not _is_short(unit.frames) for frame in unit.frames]
        settled, others = [], []
        for (script, name), unit in self._found.items():
            if unit.fingerprint is None or unit.is_placeholder:
                others.append((script, name, unit.value))
            else:
                settled.append((script, name, unit.value, unit.fingerprint))
        made = _Bundle(sent, more, settled, others, [])
        size = sum(len(frame) for unit in self._found.values() for frame in unit.frames)
        of_one = len({script for script, _ in self._found}) == 1
        is_small = size < SMALL and of_one and self._carries == "all" and self._table is None
        is_seen = all(
            not unit.is_placeholder and (not unit.digest or unit.fingerprint is not None)
            for unit in self._found.values()
        )
        if is_small and is_seen:
            if len(_bundles) >= MOST:
                _bundles.clear()
            content = self._content_of(others)
            key = (self._recurse, self._share, self._carries, *roots.items())
            _bundles[key] = made._replace(content=content)
        return made

    def _content_of(self, values: list[tuple[scripts.Script, str, Any]]) -> list[bytes]:
        if not values:
            return []
        group = tuple(name for _, name, _ in values)
        return self.pickled(values[0][0], group, [value for *_, value in values])[0]

    def gather(
        self, roots: dict[tuple[scripts.Script, str], bool]
    ) -> list[tuple[scripts.Script, tuple[str, ...], Unit]]:
        """Return the units, code first."""
        self._gather_from(roots, roots)
        self._needed = dict.fromkeys(self._found)
        self._gather_from([each for key in self._needed for each in self._sharing(key)], {})
        code = [(key[0], (key[1],), unit) for key, unit in self._found.items() if unit.digest]
        return code + self._groups()

    def _gather_from(
        self, pending: Iterable[tuple[scripts.Script, str]], roots: dict[Any, bool]
    ) -> None:
        pending = list(pending)
        for key in pending:
            script, name = key
            if key in self._found or name not in script.namespace or self._is_left_out(key):
                continue
            unit = self._found[key] = self._unit(script, name, is_root=roots.get(key, False))
            pending += unit.needs
            if not roots:
                pending += self._sharing(key)

    def _sharing(self, key: tuple[scripts.Script, str]) -> list[tuple[scripts.Script, str]]:
        """Return the names that were sent before and share an object with that of *key*."""
        script, unit = key[0], self._found[key]
        if not unit.shared:
            return []
        others = [(name, each) for name, each in [*script.sent.items()] if isinstance(name, str)]
        return [
            (script, name)
            for name, each in others
            if each.shared and not each.shared.keys().isdisjoint(unit.shared)
        ]

    def _is_left_out(self, key: tuple[scripts.Script, str]) -> bool:
        script, name = key
        return self._carries == "own" and (name in script.received or name in scripts.inherited)

    def _unit(self, script: scripts.Script, name: str, *, is_root: bool) -> Unit:
        value = script.namespace[name]
        key = (name, self._share) if self._share else name  # by reference they are other bytes
        last: Unit | None = script.sent.get(key)
        fingerprint = _fingerprint(value)
        is_same = last is not None and last.value is value and not last.is_placeholder
        if last is not None and is_same and _match(last.fingerprint, fingerprint):
            return last
        unit = Unit(value)
        unit.fingerprint = fingerprint
        pickler = self._fill(script, name, unit, last, is_root=is_root)
        with scripts.lock:  # another thread may have been quicker
            last = cast("Unit | None", script.sent.get(key))
            is_data = not unit.digest and type(value) not in IMMUTABLE
            is_same = last is not None and (last.value is value or not is_data)
            if last is not None and is_same and last.frames == unit.frames:
                last.value, last.fingerprint, last.needs = value, fingerprint, unit.needs
                return last
            unit.version = next(_versions)
            if unit.digest:
                _count_changes(unit, last)
            elif is_data and pickler is not None:
                unit.shared = _shared(pickler)
            script.sent[key] = unit
            return unit

    def _fill(
        self, script: scripts.Script, name: str, unit: Unit, last: Unit | None, *, is_root: bool
    ) -> UnitPickler | None:
        """Pickle what *unit* is to hold; return what did, unless something stands for the value."""
        value, pickler = unit.value, None
        if is_code(value):
            unit.digest = digest(value)
        elif last is None:
            unit.origin = _origin(value)
        elif last.value is value:
            unit.origin = last.origin
        began = time.perf_counter()
        try:
            unit.frames, pickler = self.pickled(script, (name,), value)
            unit.needs = dict(pickler.needed)
            if pickler.begins_anew and unit.origin is not None:
                self._refer(unit)
                pickler = None
        except Exception as error:  # noqa: BLE001 - whatever the value's own hooks raise
            raise_interrupt(error)
            if isinstance(value, type) and not self._placeholders:
                self._placeholders = self._refused_attributes(script, name, value)
                try:
                    return self._fill(script, name, unit, last, is_root=is_root)
                finally:
                    self._placeholders = {}
            self._hold_the_place(name, unit, error, is_root=is_root)
        else:
            if last is not None and unit.fingerprint is None:
                _warn(name, unit.frames, time.perf_counter() - began)
        if unit.digest:
            unit.attributes = {
                key: (0, each, b"" if key in _UNWATCHED else self._content(script, each))
                for key, each in _attributes_of(value).items()
            }
        return pickler

    def _refused_attributes(
        self, script: scripts.Script, name: str, cls: type
    ) -> dict[str, fresh.Placeholder]:
        """Return placeholders for the attributes of *cls* that cannot be pickled."""
        found = {}
        for attribute, value in classes.attributes_of(cls).items():
            try:
                self.pickled(script, (name,), value)
            except Exception as error:  # noqa: BLE001 - whatever the value's own hooks raise
                raise_interrupt(error)
                refused = refusals.dump_refusal(value, error)
                what = f"{name}.{attribute}{refused.path or ''} of __main__ ({refused.what})"
                found[attribute] = fresh.Placeholder(what, refused.why)
        return found

    def _hold_the_place(self, name: str, unit: Unit, error: Exception, *, is_root: bool) -> None:
        """Send something in place of a value that cannot be pickled."""
        refused = refusals.dump_refusal(unit.value, error)
        what = f"global {name}{refused.path or ''} of __main__ ({refused.what})"
        if is_root and unit.digest:
            raise SerializationError(what, refused.why) from error
        if unit.origin is not None:
            self._refer(unit)
        else:
            unit.is_placeholder, unit.digest = True, b""
            unit.frames = [pickle.dumps(fresh.Placeholder(what, refused.why), 5)]

    def _refer(self, unit: Unit) -> None:
        """Have the object of an importable module go by its name there."""
        assert unit.origin is not None
        unit.frames = [pickle.dumps(Named(names.resolve, unit.origin), 5)]

    def _content(self, script: scripts.Script, value: Any) -> bytes:
        if type(value) is FunctionType:  # of a class
            value = value.__defaults__, value.__kwdefaults__
        if not isinstance(value, (*_CONTAINERS, tuple)):
            return b""
        try:
            return b"".join(self.pickled(script, (), value)[0])
        except Exception as error:  # noqa: BLE001 - what cannot be compared has not changed
            raise_interrupt(error)
            return b""

    def pickled(
        self, script: scripts.Script, group: tuple[str, ...], value: Any
    ) -> tuple[list[bytes], UnitPickler]:
        """Return the frames of the value of a name, or of several by name; and what pickled it."""
        for table in (fresh.reducers, outofband.reducers):
            if table.waiting:
                table.look()
        for attempt in range(1, TRIES + 1):
            pickler = self._pickler or UnitPickler(self._share)
            self._pickler = None  # a hook of the value may have something pickled, too
            pickler.clear()
            if self._table is not None:
                pickler.dispatch_table = self._table
            pickler.recurse, pickler.script = self._recurse, script
            pickler.group, pickler.values = group, self._named_values(script)
            pickler.root = group[0] if len(group) == 1 else None
            pickler.placeholders = self._placeholders
            try:
                pickler.dump(value)
                if pickler.state is not None:
                    pickler.dump(pickler.state)
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

    def _groups(self) -> list[tuple[scripts.Script, tuple[str, ...], Unit]]:
        """Return the units of data; those whose values share an object are one."""
        leader: dict[Any, Any] = {}

        def find(key: Any) -> Any:
            while leader.setdefault(key, key) != key:
                key = leader[key]
            return key

        data = {key: unit for key, unit in self._found.items() if not unit.digest}
        circles: list[Any] = []
        if any(True in unit.needs.values() for unit in data.values()):
            circles = [(a, b) for a in data for b in self._needed_by(a) if a in self._needed_by(b)]
        if not circles and sum(bool(unit.shared) for unit in data.values()) < 2:
            return [(key[0], (key[1],), unit) for key, unit in data.items()]
        for key, unit in data.items():
            find(key)
            for each in () if unit.is_placeholder else unit.shared:
                leader[find((key[0], each))] = find(key)
        for one, other in circles:
            leader[find(one)] = find(other)
        together: dict[Any, list[tuple[scripts.Script, str]]] = {}
        for key in data:
            together.setdefault(find(key), []).append(key)
        return [
            self._group(script=keys[0][0], group=tuple(sorted(name for _, name in keys)))
            for keys in together.values()
        ]

    def needed(self, script: scripts.Script, group: tuple[str, ...], _: Unit) -> tuple[str, ...]:
        """Return those names of a unit that are sent for their own sake."""
        return tuple(name for name in group if (script, name) in self._needed)

    def _needed_by(self, key: tuple[scripts.Script, str]) -> list[tuple[scripts.Script, str]]:
        """Return the data without which that of a name cannot be made."""
        needed: list[tuple[scripts.Script, str]] = []
        pending = [key]
        for each in pending:
            for other, is_needed in self._found[each].needs.items():
                unit = self._found.get(other)
                if is_needed and unit is not None and not unit.digest and other not in needed:
                    needed.append(other)
                    pending.append(other)
        return needed

    def _group(
        self, script: scripts.Script, group: tuple[str, ...]
    ) -> tuple[scripts.Script, tuple[str, ...], Unit]:
        if len(group) == 1:
            return script, group, self._found[script, group[0]]
        members = [self._found[script, name] for name in group]
        fingerprint: list[Any] = [each.version for each in members]
        last = script.sent.get((group, self._share))
        if last is None or last.fingerprint != fingerprint:
            last = script.sent[group, self._share] = Unit(
                {name: script.namespace[name] for name in group}
            )
            last.fingerprint, last.version = fingerprint, max(fingerprint)
            last.frames = self.pickled(script, group, last.value)[0]
        return script, group, last


def _attributes_of(value: Any) -> dict[str, Any]:
    if isinstance(value, FunctionType):
        return functions.attributes_of(value)
    return classes.attributes_of(value) if isinstance(value, type) else {}


def _count_changes(unit: Unit, last: Unit | None) -> None:
    """Note which attributes of a function or class have changed since it was sent first."""
    before = {} if last is None else last.attributes
    for name, (_, value, content) in unit.attributes.items():
        version, known, content_then = before.get(name, (0, None, b""))
        is_new = name not in before or content != content_then or not _is_equal(known, value)
        if last is not None and is_new:
            version = unit.version
        unit.attributes[name] = (version, value, content)


def _sent(
    script: scripts.Script, group: tuple[str, ...], unit: Unit, needed: tuple[str, ...]
) -> tuple[Any, ...]:
    if unit.sent is None or unit.sent[2] != needed:
        attributes = {name: each[0] for name, each in unit.attributes.items()}
        how = (unit.version, unit.digest, attributes, unit.origin, unit.is_placeholder)
        unit.sent = tuple(Sent(script.sent_uid(), group, needed, *how, _placed(unit.frames)))
    return unit.sent


def _placed(frames: Sequence[Buffer]) -> bytes | int:
    return bytes(frames[0]) if _is_short(frames) else len(frames)


def _is_short(frames: Sequence[Buffer]) -> bool:
    return len(frames) == 1 and memoryview(frames[0]).nbytes <= INLINE


#: attributes that Python or libraries derive from a class statement
_UNWATCHED = frozenset({"__annotations__", "__match_args__", "__parameters__", "__orig_bases__"})
_UNWATCHED |= {"__dataclass_fields__", "__dataclass_params__", "__wrapped__"}


def _fingerprint(value: Any) -> list[Any] | None:
    """Return by what to see that *value*, the same object, has not changed; ``None``: nothing."""
    kind = type(value)
    if kind in IMMUTABLE or kind in fresh.reducers:
        return []
    if kind is FunctionType or isinstance(value, type):
        if not is_code(value):
            return []
        parts = functions.parts_of(value) if kind is FunctionType else classes.parts_of(value)
        return parts if all(map(_is_settled, parts)) else None
    torch = sys.modules.get("torch")
    if torch is not None and kind is getattr(torch, "Tensor", None):
        return _fingerprint_of_tensor(value)
    return None


def _is_settled(part: Any) -> bool:
    """Return whether a part of a function or class is the same as long as it is that object."""
    if type(part) is tuple:
        return all(map(_is_settled, part))
    return type(part) in _PARTS or isinstance(part, (FunctionType, type))


def _fingerprint_of_tensor(tensor: Any) -> list[Any] | None:
    try:
        content = memoryview(tensor.detach().numpy()).cast("B")
    except (RuntimeError, TypeError):  # on a GPU, with gaps, of a kind that numpy lacks
        return None
    # The version does not count what is written by numpy.
    how = tensor.requires_grad, tensor.is_shared(), tuple(tensor.shape)
    return [tensor._version, how, zlib.crc32(content)]


def _match(before: list[Any] | None, now: list[Any] | None) -> bool:
    if before is None or now is None or len(before) != len(now):
        return False
    return all(
        a is b or (type(a) in (int, tuple) and a == b) for a, b in zip(before, now, strict=True)
    )


def _is_equal(before: Any, now: Any) -> bool:
    if before is now:
        return True
    if type(before) is not type(now):
        return False
    if isinstance(now, FunctionType):
        return functions.digest(before) == functions.digest(now)
    plain = getattr(now, "__func__", getattr(now, "fget", None))
    if isinstance(plain, FunctionType):
        return _is_equal(getattr(before, "__func__", getattr(before, "fget", None)), plain)
    if isinstance(now, (*_CONTAINERS, tuple)):  # what is in there is compared as bytes
        return True
    return type(now) in IMMUTABLE and bool(before == now)


def _shared(pickler: UnitPickler) -> dict[int, Any]:
    """Return those objects of what was pickled that other names may refer to."""
    inside = [each for _, each in pickler.memo.copy().values() if type(each) not in IMMUTABLE]
    found = {id(each): each for each in inside if _may_be_shared(each)}
    return {**found, **{address: sent for (address, _), sent in pickler.stores.items()}}


def _may_be_shared(obj: Any) -> bool:
    if isinstance(obj, _UNSHARED):
        return False
    if isinstance(obj, _CONTAINERS) or type(obj) in fresh.reducers:
        return True
    if hasattr(obj, "__dataclass_params__") and obj.__dataclass_params__.frozen:
        return False
    # Not by looking at ``__dict__``, which makes one.
    return type(obj).__dictoffset__ != 0 or type(obj).__name__ in (
        "ndarray",
        "SentStorage",
        "Generator",
    )


def _origin(value: Any) -> tuple[str, str] | None:
    """Return module and name of *value* if an importable module has it under some name."""
    kind = type(value)
    if (
        kind in IMMUTABLE
        or kind.__module__ in names.MAIN
        or isinstance(value, (FunctionType, type))
    ):
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
