"""Write a folder of files as a whole, or nothing."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pparallel.errors import ConfigError


def write_all(folder: Path, contents: Mapping[str, str]) -> None:
    """Make *folder* with files of these contents, by their paths in it.

    Raises:
        ConfigError: it exists, or there is no folder to make it in.
        OSError: a file cannot be written.
    """
    if os.path.lexists(folder):
        message = f"{folder} exists already, and is left as it is: remove it, or choose another"
        raise ConfigError(f"{message} name or --directory")
    if not folder.parent.is_dir():
        message = f"there is no folder {folder.parent} to write {folder.name} in: make it first"
        raise ConfigError(message)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        for path, text in contents.items():
            target = draft / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        draft.chmod(0o777 & ~_umask())  # of its own, a temporary folder is its maker's alone
        draft.rename(folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
