"""An environment that sees what is installed here, but for pparallel and its plugins."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path


class FreshEnvironment:
    """A virtual environment of its own, outside the source tree.

    Attributes:
        folder: where it is.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        venv.create(folder, symlinks=True)
        (site,) = folder.glob("lib/python*/site-packages")
        others = folder / "others"
        others.mkdir()
        for each in Path(sysconfig.get_path("purelib")).iterdir():
            if "pparallel" not in each.name and each.suffix != ".pth":
                (others / each.name).symlink_to(each)
        (site / "others.pth").write_text(f"{others}\n")

    def install(self, *wheels: Path) -> None:
        """Install wheels as pip does, and nothing that they depend on."""
        python = self.folder / "bin" / "python"
        command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
        command += ["--no-deps", "--no-index", "--no-compile", *map(str, wheels)]
        subprocess.run(command, check=True, timeout=300)

    def run(self, *args: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """Run one of its programs in its folder, with nothing of this process's environment."""
        kept = ("HOME", "LANG", "TMPDIR", "PYTHONDONTWRITEBYTECODE")
        env = {name: os.environ[name] for name in kept if name in os.environ}
        return subprocess.run(
            [str(self.folder / "bin" / args[0]), *args[1:]],
            cwd=self.folder,
            env={**env, "PATH": f"{self.folder / 'bin'}:/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )


def wheel(source: Path, folder: Path) -> Path:
    """Build the wheel of the distribution at *source* into *folder*, and return it."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(
        command, cwd=source, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built
