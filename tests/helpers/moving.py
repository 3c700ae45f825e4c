"""The programs in examples/moving: what they print, and that their import lines alone differ."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

MOVING = Path(__file__).resolve().parents[2] / "examples" / "moving"
TIMEOUT = 300.0  #: seconds after which a program hangs


def output_of(program: str, *args: str) -> str:
    """Run a program as a user does, every warning an error, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(MOVING / program / "after.py"), *args],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout


def without_imports(source: str) -> list[str]:
    """Return the lines of a program that are not of imports, without the empty ones."""
    imports: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(source.splitlines(), 1)
    return [line for number, line in lines if number not in imports and line.strip()]
