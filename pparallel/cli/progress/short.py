"""Values in few characters."""

from __future__ import annotations

WIDTH = 24  #: characters of a text, unless said otherwise
_PLAIN = 10_000_000  #: from here on an integer is rounded


def number(value: float) -> str:
    """Return *value* with four digits that count; integers that are not huge stay whole."""
    if float(value).is_integer() and abs(value) < _PLAIN:
        return str(int(value))
    return f"{float(value):.4g}"


def rate(steps_per_second: float | None) -> str:
    """Return a rate such as ``12.3/s``."""
    if steps_per_second is None:
        return "-"
    digits = ".0f" if steps_per_second >= 100 else ".3g"
    return f"{steps_per_second:{digits}}/s"


def clock(seconds: float) -> str:
    """Return a time span such as ``1:07`` or ``2:00:13``."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def tasks(wanted: int, done: int, failed: int) -> str:
    """Return ``done/wanted`` and how many failed; nothing where there is no task."""
    if not wanted:
        return ""
    return f"{done}/{wanted}, {failed} failed" if failed else f"{done}/{wanted}"


def value(reported: object, width: int = WIDTH) -> str:
    """Return what a target reported, whatever it is, as one line of at most *width* characters."""
    try:
        return _value(reported, width)
    except Exception as error:  # noqa: BLE001 - the value is the user's: it may raise anything
        return f"<{type(reported).__name__}: {type(error).__name__}>"


def _value(reported: object, width: int) -> str:
    if hasattr(reported, "dtype") and hasattr(reported, "item") and _size(reported) == 1:
        reported = reported.item()  # a number that torch or numpy wraps
    if isinstance(reported, int | float) and not isinstance(reported, bool):
        return number(reported)
    return line(str(reported), width)


def _size(array: object) -> int:
    numel = getattr(array, "numel", None)
    return int(numel() if callable(numel) else getattr(array, "size", 0))


def line(text: str, width: int = WIDTH) -> str:
    """Return *text* in one line of at most *width* printable characters."""
    joined = "".join(each if each.isprintable() else "?" for each in " ".join(text.split()))
    return joined if len(joined) <= width else f"{joined[: width - 1]}…"
