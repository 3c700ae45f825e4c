"""The arena against a model: no two live blocks overlap, contents stay, all comes back."""

from __future__ import annotations

from arena_machine import ArenaMachine
from hypothesis import settings

TestArena = ArenaMachine.TestCase
TestArena.settings = settings(max_examples=20)
