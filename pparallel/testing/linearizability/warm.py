"""Imported once, by the process that clients are forked from: what each of them would import."""

from __future__ import annotations

import pparallel.testing.linearizability.client  # noqa: F401
from pparallel.registry import default_registry

_registry = default_registry()
for _interface, _backend in (("serializer", "dill"), ("serializer", "safe"), ("reducer", "local")):
    _registry.load(_registry.find(_interface, _backend))
