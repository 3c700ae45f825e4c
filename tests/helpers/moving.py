"""The programs in examples/moving: what they print, and that their import lines alone differ."""

from __future__ import annotations

import ast
from pathlib import Path

MOVING = Path(__file__).resolve().parents[2] / "examples" / "moving"


def without_imports(source: str) -> list[str]:
    """Return the lines of a program that are not of imports, without the empty ones."""
    imports: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(source.splitlines(), 1)
    return [line for number, line in lines if number not in imports and line.strip()]
