"""Whatever a program logs, as plain data of a bounded size."""

from __future__ import annotations

from typing import Any

_LONGEST_TEXT = 12_000  # bytes
_SHORT_TEXT = _LONGEST_TEXT // 4  # characters that are no more bytes than that, whatever they are
_DEEPEST = 4  # levels of lists and mappings


def plain(value: Any, depth: int = 0) -> Any:
    """Return *value* as plain data; as its text if it is none, and cut if it is long."""
    kind = type(value)
    if value is None or kind in (bool, int, float) or (kind is str and len(value) <= _SHORT_TEXT):
        return value
    for number in (int, float):
        if isinstance(value, number):  # an enumeration's or numpy's
            return number(value)
    if isinstance(value, list | tuple | dict) and depth < _DEEPEST:
        if isinstance(value, dict):
            return {plain(key, _DEEPEST): plain(each, depth + 1) for key, each in value.items()}
        parts = [plain(each, depth + 1) for each in value]
        return tuple(parts) if isinstance(value, tuple) else parts
    try:
        return _cut(str(value))
    except Exception as unreadable:  # noqa: BLE001 - the user's __str__ may raise anything
        return f"<{kind.__name__}: __str__ raised {type(unreadable).__name__}>"


def _cut(text: str) -> str:
    data = text.encode(errors="replace")
    if len(data) <= _LONGEST_TEXT:
        return text
    half = _LONGEST_TEXT // 2 - 50
    first, last = data[:half].decode(errors="ignore"), data[-half:].decode(errors="ignore")
    return f"{first} [... {len(data) - 2 * half} bytes left out ...] {last}"
