"""Which GPUs torch sees; asked of another process, for torch may be slow, broken or both."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from pparallel.cli.doctor.check import Check, size

PATIENCE = 60.0  #: seconds that importing torch may take
DRIVER = Path("/proc/driver/nvidia/version")

_QUESTION = """\
import json, torch
count = torch.cuda.device_count()
found = [torch.cuda.get_device_properties(each) for each in range(count)]
print()
print(json.dumps({
    "torch": torch.__version__,
    "cuda": torch.version.cuda,
    "gpus": [[each.name, each.total_memory] for each in found],
}))
"""


def gpus(driver: Path = DRIVER, question: str = _QUESTION) -> list[Check]:
    """Look at the GPUs, if torch is installed.

    Args:
        driver: exists where an NVIDIA driver is loaded.
        question: the program that asks torch, and prints one line of JSON at its end.
    """
    if importlib.util.find_spec("torch") is None:
        detail = "torch is not installed"
        if not driver.exists():
            return [Check("gpus", "ok", detail)]
        advice = "there is an NVIDIA driver; to use it: pip install 'pparallel[torch]'"
        return [Check("gpus", "warn", detail, advice)]
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", question],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return [_broken(f"torch was not imported within {PATIENCE:.0f} s")]
    if done.returncode:
        return [_broken(f"torch cannot be imported: {_last_line(done.stderr, done.returncode)}")]
    return [judged_gpus(json.loads(done.stdout.splitlines()[-1]), has_driver=driver.exists())]


def judged_gpus(answer: dict[str, Any], *, has_driver: bool) -> Check:
    """Return what to think of what torch answered."""
    build = f"torch {answer['torch']}"
    if found := answer["gpus"]:
        names = ", ".join(f"{name} ({size(memory)})" for name, memory in found)
        return Check("gpus", "ok", f"{len(found)}: {names}; {build}")
    if not has_driver:
        return Check("gpus", "ok", f"none; {build}")
    advice = "install a build of torch for CUDA: https://pytorch.org/get-started/locally/"
    if answer["cuda"]:
        advice = (
            "see what nvidia-smi says: the driver may be too old, or CUDA_VISIBLE_DEVICES empty"
        )
    return Check("gpus", "warn", f"{build} sees none, though there is an NVIDIA driver", advice)


def _broken(detail: str) -> Check:
    advice = "install torch again: pip install --force-reinstall 'pparallel[torch]'"
    return Check("gpus", "fail", detail, advice)


def _last_line(stderr: str, code: int) -> str:
    lines = [each.strip() for each in stderr.splitlines() if each.strip()]
    return lines[-1] if lines else f"exit code {code}"
