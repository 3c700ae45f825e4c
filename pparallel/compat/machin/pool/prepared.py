"""Imported by the fork server of an engine's workers: what each would take long to make."""

from __future__ import annotations

from pparallel.compat.machin.pickle import serializer

serializer()
