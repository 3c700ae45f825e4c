"""The names of a script that have arrived: filled into its namespace, each if it is lacking or new.

A member keeps what it has: values are filled once, then they are its own. A worker follows its
caller: a value is set again when the caller has changed it since; until then what tasks and
initializers made of it stays. Functions and classes are replaced when their code has changed, and
of those that are the same only the attributes are set that their sender has changed.
"""

from __future__ import annotations

import io
import logging
import pickle
from collections.abc import Iterable, Iterator, Sequence
from types import FunctionType
from typing import Any

from typing_extensions import Buffer, override

from pparallel.errors import SerializationError
from pparallel.runtime.processes import main_module
from pparallel_serializers import outofband, refusals
from pparallel_serializers.by_value import classes, names, scripts, units
from pparallel_serializers.by_value.pickler import Placeholder
from pparallel_serializers.by_value.units import Sent

logger = logging.getLogger(__name__)


def filled(header: Buffer, buffers: Iterable[Buffer]) -> Sequence[Buffer]:
    """Fill in the units that came before an object, and return the object's own buffers.

    Raises:
        SerializationError: this process has some of the names whose values share an object, and
            lacks others.
    """
    token, sent, own = pickle.loads(header)
    rest = iter(buffers)
    frames = _joined(own, rest)
    if token == scripts.token():
        return frames
    arrived = [(Sent(*each), _joined(each[-1], rest)) for each in pickle.loads(sent)]
    with scripts.lock:
        entries = [_Entry(token, *each) for each in arrived if not _is_known(token, each[0])]
        wanted = [each for each in entries if each.is_wanted()]
        try:
            for each in wanted:
                each.script.pending.update(dict.fromkeys(each.sent.names, each))
            for each in wanted:
                if each.script.pending.get(each.sent.names[0]) is each:
                    each.found()
        finally:
            for each in wanted:
                each.forget()
    return frames


def _is_known(token: str, sent: Sent) -> bool:
    """Return whether all of a unit has arrived in this version, or a later one."""
    received = scripts.with_uid(sent.uid).received
    for name in sent.names:
        known = received.get(name)
        if known is None or known[0] != token or known[1].version < sent.version:
            return False
    return True


def _joined(frames: list[bytes | None], rest: Iterator[Buffer]) -> list[Buffer]:
    return [next(rest) if each is None else each for each in frames]


class _Unpickler(pickle.Unpickler):
    """Reads a unit, whose persistent ids are names of its script."""

    script: scripts.Script

    @override
    def persistent_load(self, pid: Any) -> Any:
        return self.script.find(pid)


class _Entry:
    """A unit that has arrived.

    Attributes:
        sent: the unit.
        script: where its names belong.
    """

    def __init__(self, token: str, sent: Sent, frames: Sequence[Buffer]) -> None:
        self.sent, self.script = sent, scripts.with_uid(sent.uid)
        self._token, self._frames = token, frames
        self._reader: _Unpickler | None = None
        self._is_defined = self._is_kept = False
        known = [self.script.received.get(name) for name in sent.names]
        received = [each[1] for each in known if each is not None and each[0] == token]
        self._last = min(received, key=lambda each: each.version, default=None)
        self._is_first = not any(known)
        here = self.script.namespace
        self._lacking = [
            name for name in sent.names if name not in here or type(here[name]) is Placeholder
        ]

    def is_wanted(self) -> bool:
        """Return whether this process lacks it, or is to follow a change of it."""
        if len(self._lacking) == len(self.sent.names):
            return True
        is_wanted = self._is_wanted_code() if self.sent.digest else self._is_wanted_data()
        if not is_wanted and (self._last is not None or self._is_first):
            self._note()
        return is_wanted

    def found(self, *, is_made: bool = False) -> None:
        """Have what something refers to: whole, or for what is being made itself as made only."""
        if not self.sent.digest:
            self._set(self._data())
            return
        if self._reader is None:
            self._reader = outofband.read(self._frames, self._unpickler)
            self.script.unfinished[self.sent.names[0]] = self._made()
        if not is_made:
            self._set(self._filled())

    def forget(self) -> None:
        """Have nothing wait for it any longer."""
        for name in self.sent.names:
            self.script.pending.pop(name, None)
            self.script.unfinished.pop(name, None)

    def _data(self) -> Any:
        self._begin()
        if self.sent.origin is not None and not main_module.follows_caller:
            return names.resolve(*self.sent.origin)
        try:
            return _read(outofband.read(self._frames, self._unpickler))
        except Exception as error:
            name, why = self.sent.names[0], f"it cannot be read here: {refusals.reason(error)}"
            if len(self.sent.names) > 1:
                raise
            return Placeholder(f"global {name} of __main__", why)

    def _made(self) -> Any:
        """Return the function or class, still to be filled: the one that has the name, if equal."""
        made = _read(self._reader, is_made=True)
        self._is_defined = type(made) is tuple
        if not self._is_defined:  # it goes by another name
            return made
        make, args = made
        own = self.script.namespace.get(self.sent.names[0])
        self._is_kept = classes.is_code(own) and classes.digest(own) == self.sent.digest
        made = own if self._is_kept else make(*args)
        classes.note_digest(made, self.sent.digest)
        return made

    def _filled(self) -> Any:
        self._begin()
        made = self.script.unfinished[self.sent.names[0]]
        if self._is_defined:
            fill, (attributes, *rest) = _read(self._reader)
            if self._is_kept:
                attributes = {k: v for k, v in attributes.items() if self._is_changed(made, k, v)}
            fill(made, (attributes, *rest))
        return made

    def _is_changed(self, made: Any, attribute: str, value: Any) -> bool:
        """Return whether to follow the sender in that *attribute*: members do so in code alone."""
        if type(value) is Placeholder and hasattr(made, attribute):
            return False
        if self._is_first:
            return main_module.follows_caller
        known = 0 if self._last is None else self._last.attributes.get(attribute, 0)
        is_code = isinstance(value, (FunctionType, classmethod, property, staticmethod, type))
        follows = main_module.follows_caller or is_code
        return follows and self.sent.attributes.get(attribute, 0) > known

    def _begin(self) -> None:
        """Have what it refers to not wait for it."""
        for name in self.sent.names:
            del self.script.pending[name]

    def _set(self, value: Any) -> None:
        names_set = self.sent.names
        self.script.namespace.update(value if len(names_set) > 1 else {names_set[0]: value})
        self._note()

    def _unpickler(self, stream: Buffer, **how: Any) -> Any:
        made = _Unpickler(io.BytesIO(stream), **how)
        made.script = self.script
        return made

    def _is_wanted_code(self) -> bool:
        sent, follows = self.sent, main_module.follows_caller
        own = self.script.namespace[sent.names[0]]
        if classes.is_code(own) and classes.digest(own) == sent.digest:
            known = {} if self._last is None else self._last.attributes
            is_changed = any(sent.attributes[key] > known.get(key, 0) for key in sent.attributes)
            return is_changed or (follows and self._is_first)
        return follows or not self._is_first

    def _is_wanted_data(self) -> bool:
        sent = self.sent
        if sent.is_placeholder:
            return False
        if not main_module.follows_caller:
            if not set(self._lacking).isdisjoint(sent.needed):
                raise SerializationError(
                    f"globals {' and '.join(sent.names)} of __main__",
                    f"they share objects, and this member has others of its own but lacks "
                    f"{self._lacking[0]!r}: name all in the function that is launched",
                    loading=True,
                )
            return False
        if self._lacking:
            logger.warning(
                "globals %s of __main__ share objects, and this worker had some of them: all are"
                " set from the caller, without what tasks did to them; name all in one function",
                ", ".join(sent.names),
            )
        if self._lacking or self._last is not None:
            return True
        return self._is_first and not units.same_as_sent(self.script, sent, self._frames)

    def _note(self) -> None:
        how = self._token, self.sent._replace(frames=[])
        self.script.received.update(dict.fromkeys(self.sent.names, how))


def _read(reader: Any, *, is_made: bool = False) -> Any:
    """Return the next object; *is_made*: nothing in it needs to be filled yet."""
    scripts.loading.append(is_made)
    try:
        return reader.load()
    finally:
        scripts.loading.pop()
