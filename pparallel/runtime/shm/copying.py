"""Addresses of memory, and copies to them."""

from __future__ import annotations

import ctypes
from typing import Any

from pparallel.machine.copying import copy_all


class _Buffer(ctypes.Structure):
    """Py_buffer: the way to the address of memory that may not be written to."""


_Buffer._fields_ = [
    ("buf", ctypes.c_void_p),
    ("obj", ctypes.py_object),
    ("len", ctypes.c_ssize_t),
    ("itemsize", ctypes.c_ssize_t),
    ("readonly", ctypes.c_int),
    ("ndim", ctypes.c_int),
    ("format", ctypes.c_char_p),
    ("shape", ctypes.c_void_p),
    ("strides", ctypes.c_void_p),
    ("suboffsets", ctypes.c_void_p),
    ("internal", ctypes.c_void_p),
]


_get: Any = ctypes.pythonapi.PyObject_GetBuffer
_get.argtypes = [ctypes.py_object, ctypes.POINTER(_Buffer), ctypes.c_int]
_release: Any = ctypes.pythonapi.PyBuffer_Release
_release.argtypes = [ctypes.POINTER(_Buffer)]
_release.restype = None


def copy_to(address: int, source: memoryview) -> None:
    """Copy *source* to that address; other threads run meanwhile."""
    buffer = _Buffer()
    _get(source, buffer, 0)
    try:
        copy_all([(address, buffer.buf, len(source))])
    finally:
        _release(buffer)


def address_of(source: memoryview) -> int:
    """Return where *source*, which is not empty, lies in memory."""
    if not source.readonly:
        return ctypes.addressof(ctypes.c_char.from_buffer(source))
    buffer = _Buffer()
    _get(source, buffer, 0)
    try:
        return int(buffer.buf)
    finally:
        _release(buffer)
