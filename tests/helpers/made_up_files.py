"""Files of a machine that is made up."""

from __future__ import annotations

from pathlib import Path


def write(root: Path, **files: str) -> Path:
    """Make files below *root*, their paths with ``__`` for ``/`` and ``_dot_`` for a dot."""
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root
