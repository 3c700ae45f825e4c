"""OrderedServer: keep versioned values that members compare and push."""

from __future__ import annotations

import itertools
import math
import operator
import sys
from abc import abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from pydantic import Field

from pparallel.config import BackendConfig
from pparallel.interfaces.resource import Resource

_LARGE = 1 << 16  #: bytes of a tensor

Found = tuple[Any, Hashable]  #: a value and the version under which it was pushed


class OrderedServer(Resource):
    """Keeps, for each key, its newest values in the order in which they were pushed.

    Keys are hashable, versions are hashable and not None; both are compared by value (``==``),
    since most servers hold copies of them, and so equal themselves, which NaN does not. Any thread
    may use a server.

    Guarantees:
        - A push is stored if the newest version of its key equals ``prev_version``, and refused
          otherwise (``OrderedServerSuite.test_a_push_needs_the_newest_version``).
        - Strings, integers, bytes and tuples of them are keys and versions on every server,
          whatever else it takes (``OrderedServerSuite.test_keys_and_versions_of_all_kinds``).
        - Versions are compared by value
          (``OrderedServerSuite.test_versions_are_compared_by_value``); None is no version, and what
          is not hashable or does not equal itself is neither key nor version
          (``test_what_cannot_be_a_version_or_key``).
        - A key that is not held accepts any ``prev_version``
          (``OrderedServerSuite.test_a_new_key_accepts_any_previous_version``).
        - A push whose ``version`` equals ``prev_version`` replaces the newest value
          (``OrderedServerSuite.test_the_same_version_overwrites``).
        - A push of an older version that is still held replaces its value and makes it the newest
          (``OrderedServerSuite.test_an_older_held_version_becomes_the_newest``).
        - The ``version_depth`` newest versions of a key are held, and no other
          (``OrderedServerSuite.test_holds_the_newest_versions``,
          ``test_holds_one_version_by_default``).
        - A key that was deleted leaves nothing behind
          (``OrderedServerSuite.test_keys_are_listed_and_deleted``).
        - What lists keys and versions returns lists that are the caller's own
          (``OrderedServerSuite.test_what_is_listed_is_the_callers_own``).
        - What is stored is a snapshot: changing the value after the push changes nothing
          (``OrderedServerSuite.test_what_is_stored_is_a_snapshot``, ``test_large_values``).
        - What is pulled is the caller's own: changing it changes nothing
          (``OrderedServerSuite.test_what_is_pulled_is_the_callers_own``, ``test_large_values``).
        - A value comes whole and with the version under which it was pushed, however often its
          key is overwritten meanwhile (``OrderedServerSuite.test_no_thread_sees_half_a_push``,
          ``test_no_member_sees_half_a_push``).
        - A value that cannot be stored changes nothing
          (``OrderedServerSuite.test_what_cannot_be_stored_changes_nothing``).
        - ``into`` is filled as a whole or, where it does not fit, not at all
          (``OrderedServerSuite.test_pulls_into``, ``test_into_must_fit``,
          ``test_into_must_have_memory_of_its_own``, ``test_into_must_not_share_memory``,
          ``test_into_may_share_memory_as_the_value_does``), with what was asked for, whatever other
          threads pull meanwhile (``test_threads_pull_into_their_own``).
        - The attributes of a dictionary are stored with it, as they are at the push
          (``OrderedServerSuite.test_attributes_of_a_dictionary``).
        - Operations on one key are linearizable: each takes effect at one moment between its call
          and its return, so that what was acknowledged is seen by all; nothing is promised across
          keys (``OrderedServerSuite.test_threads_see_one_order``, ``test_members_see_one_order``,
          ``test_a_push_is_seen_by_all_members_at_once``, ``test_members_share``).
        - :meth:`wait` returns what is new, and wakes for nothing else
          (``OrderedServerSuite.test_wait_returns_what_is_new``,
          ``test_a_waiter_sees_no_other_key_and_no_overwrite``).
        - One push wakes every waiter that waits for it
          (``OrderedServerSuite.test_one_push_wakes_every_waiter``,
          ``test_one_push_wakes_the_waiters_of_all_members``).
        - A server that cannot be reached, because a member left, raises ``PeerLostError``: it
          never seems to be empty (``OrderedServerSuite.test_after_a_member_left``).
        - :meth:`close` wakes the waiters of this member with ``ClosedError``, and any use after
          it raises ``ClosedError`` (``OrderedServerSuite.test_nobody_waits_after_the_end``).
        - All of this holds whatever was done before, in whatever order
          (``OrderedServerSuite.test_any_sequence_of_operations``).

    Features:
        - ``forks``: a server that was open when its process forked is used by the child too, also
          when the parent has closed its own or ended (``OrderedServerSuite.test_a_fork_shares``,
          ``test_a_fork_goes_on_without_its_parent``, ``test_a_fork_beside_threads``).

    Source: ``OrderedServerBase`` of machin (iffiX/machin, ``machin/parallel/server``).
    """

    @abstractmethod
    def push(
        self, key: Hashable, value: Any, version: Hashable, prev_version: Hashable | None
    ) -> bool:
        """Store *value* if the newest version of *key* equals *prev_version*.

        Returns:
            Whether it was stored. ``False``: another writer came first; pull and try again.

        Raises:
            ValueError: *version* is None, or *key*, *version* or *prev_version* does not equal
                itself, as NaN and what holds it.
            TypeError: *key*, *version* or *prev_version* is not hashable.
            SerializationError: *value* cannot be stored.
            PeerLostError: the member that keeps the values is gone.
        """

    @abstractmethod
    def fetch(self, key: Hashable, version: Hashable | None) -> Found | None:
        """Return a copy of a value with its version: what :meth:`pull` does without ``into``.

        The version that is returned, here and by :meth:`wait` and :meth:`versions`, equals
        (``==``) the one under which the value was pushed. That is enough: it may be another object
        and, on a server that takes such versions, of another type, as ``1.0`` for ``1``. The suite
        compares versions by ``==`` alone.
        """

    def pull(
        self, key: Hashable, version: Hashable | None = None, into: Any = None
    ) -> Found | None:
        """Return the value of *version*, by default of the newest, and its version.

        Args:
            key: whose value.
            version: which one; ``None`` is the newest.
            into: a tensor or array, or a mapping or sequence of them (nested as you like), to copy
                the value into; it is then what is returned. Shapes and dtypes must be those of the
                value; devices and strides need not. Each element has memory of its own, which that
                of an expanded tensor has not, nor that of one tensor under two names, unless the
                value shares memory in the same way, as a state with tied weights does.

        Returns:
            ``(value, version)``, or ``None`` if the key or the version is not held.

        Raises:
            ValueError: *into* does not fit; the entry is named and nothing was copied. Or *key* or
                *version* does not equal itself.
            TypeError: *key* or *version* is not hashable.
            PeerLostError: the member that keeps the values is gone.
        """
        check_hashable("a key", key)
        check_hashable("a version", version)
        found = self.fetch(key, version)
        if found is None or into is None:
            return found
        copy_into(found[0], into)
        return into, found[1]

    @abstractmethod
    def wait(
        self, key: Hashable, version: Hashable | None = None, timeout: float | None = None
    ) -> Found | None:
        """Return the newest value and version as soon as that version is not *version*.

        With ``version=None`` it waits until there is one.

        Args:
            key: whose value.
            version: the version that the caller has already.
            timeout: in seconds; ``None`` waits without limit, 0 pulls only what is new.

        Returns:
            ``(value, version)``, or ``None`` if *timeout* passed first.

        Raises:
            ValueError: *key* or *version* does not equal itself.
            TypeError: *key* or *version* is not hashable.
            ClosedError: the server was closed meanwhile, or the job ends.
            PeerLostError: the member that keeps the values is gone.
        """

    @abstractmethod
    def versions(self, key: Hashable) -> list[Any]:
        """Return the versions held of *key*, the newest last; none for a key not held."""

    @abstractmethod
    def keys(self) -> list[Any]:
        """Return the keys held."""

    @abstractmethod
    def delete(self, key: Hashable) -> bool:
        """Forget *key* and its versions; return whether it was held. Waiters go on waiting."""


class OrderedServerConfig(BackendConfig[OrderedServer], frozen=True):
    """What every ordered server is told.

    Attributes:
        version_depth: how many versions of a key are kept, at least 1: the newest.
    """

    interface: ClassVar[str] = "ordered_server"
    default_backend: ClassVar[str] = "memory"
    version_depth: int = Field(default=1, ge=1)


def check_version(version: object, prev_version: object = None) -> None:
    """Refuse what cannot be a version, or the version before it.

    Raises:
        ValueError: *version* is None, or one of them does not equal itself.
        TypeError: one of them is not hashable.
    """
    if version is None:
        message = "a version cannot be None: that stands for 'no version'"
        raise ValueError(message)
    check_hashable("a version", version)
    check_hashable("a version", prev_version)


def check_hashable(what: str, value: object) -> None:
    """Refuse a key or version that is not hashable, or does not equal itself.

    Raises:
        TypeError: it is not hashable.
        ValueError: it does not equal itself, or is a tuple or frozenset that holds such a value: no
            push could ever name it as the version before, and nothing would find it as a key.
    """
    try:
        hash(value)
    except TypeError as error:
        message = f"{what} must be hashable, and {value!r} is not"
        raise TypeError(message) from error
    if not _equals_itself(value):
        message = f"{what} must be equal to itself, and {value!r} is not"
        raise ValueError(message)


def _equals_itself(value: Any) -> bool:
    # Containers take an item that is the same object for equal, and so hide a NaN.
    if isinstance(value, tuple | frozenset):
        return all(map(_equals_itself, value))
    return bool(value == value)


def copy_into(value: Any, into: Any) -> None:
    """Copy the tensors and arrays of *value* into those of *into*, which has the same structure.

    Raises:
        ValueError: they differ; the first entry that does is named and nothing was copied.
    """
    from pparallel.machine.copying import lies_in_one_run

    large: list[tuple[Any, Any]] = []
    pairs = list(_pairs(value, into, "value"))
    _check_apart(pairs)
    for source, target, _ in pairs:
        if not _is_tensor(target):
            target[...] = source
        elif (
            lies_in_one_run(source) and lies_in_one_run(target) and target.nbytes >= _LARGE
        ):  # ``nbytes`` is not defined for all other layouts
            large.append((source, target))
        else:
            _copy_tensor(source, target)
    _copy_large(large)


def _copy_tensor(source: Any, target: Any) -> None:
    with sys.modules["torch"].no_grad():
        target.detach().copy_(source)  # one that was made in inference mode must be detached


def _copy_large(pairs: Sequence[tuple[Any, Any]]) -> None:
    """Copy tensors: quicker than torch's own by a third where they are larger than the caches."""
    from pparallel.machine.copying import copy_all

    copy_all([(to.data_ptr(), source.data_ptr(), to.nbytes) for source, to in pairs])
    for _, target in pairs:
        sys.modules["torch"].autograd.graph.increment_version(target)


def _pairs(value: Any, into: Any, entry: str) -> Iterator[tuple[Any, Any, str]]:
    """Walk both structures side by side; *entry* says where, as one would write it."""
    if _is_tensor(into) or _is_array(into):
        _check_fit(value, into, entry)
        yield value, into, entry
    elif isinstance(into, Mapping):
        _check_kind(value, Mapping, into, entry)
        if missing := [key for key in into if key not in value]:
            _refuse(f"{entry}[{missing[0]!r}]", "is not in what was pushed")
        if unexpected := [key for key in value if key not in into]:
            _refuse(f"{entry}[{unexpected[0]!r}]", "was pushed and has no place in 'into'")
        for key in into:
            yield from _pairs(value[key], into[key], f"{entry}[{key!r}]")
    elif isinstance(into, Sequence) and not isinstance(into, str | bytes):
        _check_kind(value, Sequence, into, entry)
        if len(value) != len(into):
            _refuse(entry, f"has {len(value)} entries, and 'into' has {len(into)}")
        for index, (source, target) in enumerate(zip(value, into, strict=True)):
            yield from _pairs(source, target, f"{entry}[{index}]")
    else:
        _refuse(entry, f"cannot be copied into {type(into).__name__}: only into a tensor or array")


def _check_fit(value: Any, into: Any, entry: str) -> None:
    same_kind = _is_tensor(value) if _is_tensor(into) else _is_array(value)
    if not same_kind:
        _refuse(entry, f"is of type {type(value).__name__}, and 'into' {type(into).__name__}")
    if _is_tensor(into):
        _check_shaped(value, into, entry)
    if tuple(value.shape) != tuple(into.shape):
        _refuse(entry, f"has shape {tuple(value.shape)}, and 'into' {tuple(into.shape)}")
    if value.dtype != into.dtype:
        _refuse(entry, f"has dtype {value.dtype}, and 'into' {into.dtype}")
    if _is_tensor(into):
        _check_tensor_memory(value, into, entry)
    else:
        _check_array_memory(into, entry)


def _check_shaped(value: Any, into: Any, entry: str) -> None:
    """Refuse tensors that have no shape to compare."""
    if sys.modules["torch"].nn.parameter.is_lazy(into):
        _refuse(entry, "cannot be copied into a parameter that has no shape yet")
    if value.is_nested or into.is_nested:
        which = "is" if value.is_nested else "cannot be copied into"
        _refuse(entry, f"{which} a nested tensor: pull without 'into'")


def _check_tensor_memory(value: Any, into: Any, entry: str) -> None:
    """Refuse a tensor that cannot be written to, or whose elements share memory."""
    torch = sys.modules["torch"]
    if into.is_meta:
        _refuse(entry, "cannot be copied into a tensor on device meta, which holds no data")
    if into.layout is torch.strided and not into.is_contiguous():
        _check_own_memory(into.shape, into.stride(), 1, "a tensor", entry)
    if not (_is_dense(value) and _is_dense(into)):
        _try_copy(value, into, entry)
    elif into.numel() and not into.data_ptr():
        _refuse(entry, "cannot be copied into a tensor whose memory was freed")


def _check_array_memory(into: Any, entry: str) -> None:
    """Refuse an array that cannot be written to, or whose elements share memory."""
    if not into.flags.writeable:
        _refuse(entry, "cannot be copied into an array that is read-only")
    _check_own_memory(into.shape, into.strides, into.itemsize, "an array", entry)


def _check_own_memory(
    shape: Sequence[int], strides: Sequence[int], size: int, kind: str, entry: str
) -> None:
    """Refuse what is not laid out so that each element lies beyond the one before it.

    Args:
        shape: of what is to be filled.
        strides: of its dimensions, in the unit of *size*.
        size: of one element.
        kind: of what is to be filled, for the message.
        entry: which it is.
    """
    reach = size
    for stride, count in sorted((abs(step), n) for step, n in zip(strides, shape, strict=True)):
        if count > 1 and stride < reach and 0 not in shape:
            why = f"cannot be copied into {kind} whose elements share memory (an expanded one?)"
            _refuse(entry, f"{why}: give a copy of it")
        reach += max(count - 1, 0) * stride


class _Span(NamedTuple):
    """Where a target lies, in bytes.

    Attributes:
        place: the device, or the object where that has no addresses.
        start: the lowest address of an element.
        end: the address behind the highest.
        dimensions: the length and the stride of each.
        itemsize: of an element.
        shift: equal for two of which every address gets the same value.
        entry: what it is filled with.
    """

    place: str
    start: int
    end: int
    dimensions: Sequence[tuple[int, int]]
    itemsize: int
    shift: object
    entry: str


def _check_apart(pairs: Sequence[tuple[Any, Any, str]]) -> None:
    """Refuse targets that share elements, unless the values share theirs in the same way."""
    if _lie_apart([target for _, target, _ in pairs]):
        return
    group: list[_Span] = []  # each but the first begins before one of the others ends
    reach = 0
    spans = (_span(*each) for each in pairs if 0 not in each[1].shape)
    for span in sorted(spans, key=operator.attrgetter("place", "start")):
        if group and (span.place != group[0].place or span.start >= reach):
            _check_group(group)
            group, reach = [], 0
        group.append(span)
        reach = max(reach, span.end)
    _check_group(group)


def _lie_apart(targets: Sequence[Any]) -> bool:
    """Return whether all are plain tensors, each in one piece beside the others: it is quick."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    kinds, strided = {torch.Tensor, torch.nn.Parameter}, torch.strided
    for each in targets:
        plain = type(each) in kinds and each.is_cpu and each.layout is strided
        if not (plain and each.is_contiguous()):
            return False
    spans = sorted((each.data_ptr(), each.nbytes) for each in targets)
    return all(at + nbytes <= after for (at, nbytes), (after, _) in itertools.pairwise(spans))


def _check_group(spans: Sequence[_Span]) -> None:
    shifts = [each.shift for each in spans]
    if len(set(shifts)) <= 1:
        return
    import numpy

    # One may lie in the gaps of another: each unit of memory gets the number of its owner.
    starts = [each.start - spans[0].start for each in spans]
    strides = [step for each in spans for _, step in each.dimensions]
    unit = math.gcd(*starts, *strides, *(each.itemsize for each in spans))
    owners = numpy.zeros((max(each.end for each in spans) - spans[0].start) // unit, numpy.int32)
    for each, start in zip(spans, starts, strict=True):
        steps = [*each.dimensions, (each.itemsize // unit, unit)]
        own = numpy.lib.stride_tricks.as_strided(
            owners[start // unit :],
            [length for length, _ in steps],
            [step // unit * owners.itemsize for _, step in steps],
        )
        owner = 1 + shifts.index(each.shift)
        others = own[(own != 0) & (own != owner)]
        if others.size:
            other = spans[int(others[0]) - 1].entry
            why = f"cannot be copied into a target that shares memory with that of {other}"
            _refuse(each.entry, f"{why}: give a copy of it")
        own[...] = owner


def _span(value: Any, into: Any, entry: str) -> _Span:
    if _is_array(into):
        place, start, strides = "cpu", into.__array_interface__["data"][0], into.strides
        alike = value.strides == strides
        shift: object = start - value.__array_interface__["data"][0]
    elif _is_dense(into):
        place, start = str(into.device), into.data_ptr()
        strides = tuple(step * into.itemsize for step in into.stride())
        alike = _is_dense(value) and value.stride() == into.stride()
        lazy = [(each.is_conj(), each.is_neg()) for each in (value, into) if alike]
        shift = (start - value.data_ptr() if alike else 0, *lazy)
    else:
        return _Span(f"object {id(into)}", 0, 1, (), 1, id(value), entry)
    # Steps back lead to lower addresses: these are the same elements from the lowest one on.
    start += sum((n - 1) * step for n, step in zip(into.shape, strides, strict=True) if step < 0)
    dimensions = [(n, abs(step)) for n, step in zip(into.shape, strides, strict=True)]
    end = start + sum((n - 1) * step for n, step in dimensions) + into.itemsize
    return _Span(place, start, end, dimensions, into.itemsize, shift if alike else entry, entry)


def _is_dense(tensor: Any) -> bool:
    """Return whether a tensor is one of torch's own, of numbers with strides."""
    torch = sys.modules["torch"]
    own = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return own and tensor.layout is torch.strided and not tensor.is_quantized


def _try_copy(value: Any, into: Any, entry: str) -> None:
    """Refuse what torch cannot copy, between layouts and kinds of tensors."""
    try:
        _copy_tensor(value, into.detach().clone())
    except (RuntimeError, TypeError, ValueError) as error:  # NotImplementedError is the first
        forms = [f"{type(each).__name__} ({each.layout})" for each in (value, into)]
        message = f"{entry}, a {forms[0]}, cannot be copied into a {forms[1]}: {error}"
        raise ValueError(message) from error


def _check_kind(value: Any, kind: type, into: Any, entry: str) -> None:
    if not isinstance(value, kind):
        _refuse(entry, f"is of type {type(value).__name__}, and 'into' {type(into).__name__}")


def _refuse(entry: str, why: str) -> None:
    message = f"{entry} {why}"
    raise ValueError(message)


def _is_tensor(value: object) -> bool:
    # Whoever holds a tensor or array has imported its library: importing it here costs others.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _is_array(value: object) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)
