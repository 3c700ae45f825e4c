"""The names that code uses: they say which objects go with a function."""

from __future__ import annotations

import dis
import weakref
from types import CodeType
from typing import NamedTuple

_KINDS = {
    **dict.fromkeys(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"), 0),
    **dict.fromkeys(("STORE_GLOBAL", "DELETE_GLOBAL"), 1),
    **dict.fromkeys(("STORE_DEREF", "DELETE_DEREF"), 2),
}


class Names(NamedTuple):
    """The names in code, and in code within it.

    Attributes:
        used: the globals that it loads, stores or deletes.
        stored: those that it stores or deletes.
        rebound: the cells that it stores or deletes.
        mentioned: all names but those of local variables: also attributes.
    """

    used: dict[str, None]
    stored: dict[str, None]
    rebound: dict[str, None]
    mentioned: dict[str, None]


_known: weakref.WeakKeyDictionary[CodeType, Names] = weakref.WeakKeyDictionary()


def names_in(code: CodeType) -> Names:
    """Return the names that *code* uses."""
    known = _known.get(code)
    if known is None:
        known = Names({}, {}, {}, dict.fromkeys(code.co_names))
        for each in dis.get_instructions(code):
            if each.opname in _KINDS:
                known[_KINDS[each.opname]][each.argval] = None
        known.used.update(known.stored)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                for own, inner in zip(known, names_in(constant), strict=True):
                    own.update(inner)
        _known[code] = known
    return known
