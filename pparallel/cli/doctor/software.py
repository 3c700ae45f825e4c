"""Python, libraries, backends and plugins."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import sys
from collections.abc import Iterable

from pparallel.cli.doctor.check import Check
from pparallel.errors import ConfigError
from pparallel.registry import Offer, default_registry

DISTRIBUTION = "pparallel"
_EXTRA = re.compile(r"extra\s*==\s*['\"]([\w-]+)['\"]")
_OURS = ("dev", "testing", "all", "examples")  #: extras that no backend is behind


def python() -> list[Check]:
    """Look at the interpreter and pparallel itself."""
    implementation = platform.python_implementation()
    pparallel = importlib.metadata.version(DISTRIBUTION)
    detail = f"{implementation} {platform.python_version()} ({sys.executable})"
    return [Check("python", "ok", detail), Check("pparallel", "ok", pparallel)]


def libraries() -> list[Check]:
    """Look at what pparallel and its backends stand on."""
    needed, optional = requirements(importlib.metadata.requires(DISTRIBUTION) or [])
    checks = []
    for name in needed:
        version = _version(name)
        checks.append(
            Check(name, "ok", version)
            if version
            else Check(name, "fail", "not installed", f"pip install {name}")
        )
    others = [name for name in (*optional, *_of_plugins()) if name not in needed]
    found = ((name, _version(name)) for name in dict.fromkeys(others))
    return checks + [Check(name, "ok", version or "not installed") for name, version in found]


def _of_plugins() -> list[str]:
    """Return what the distributions of other plugins ask for, as far as they say it."""
    try:
        packages = sorted({each.package for each in default_registry().offers()} - {DISTRIBUTION})
    except ConfigError:
        return []  # told among the backends
    found: list[str] = []
    for each in packages:
        if _version(each):
            found += requirements(importlib.metadata.requires(each) or [])[0]
    return [name for name in found if name != DISTRIBUTION]


def requirements(lines: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the distributions that *lines* name: those that are needed, and those of extras."""
    needed, optional = [], []
    for line in lines:
        name = re.split(r"[^\w.-]", line.strip(), maxsplit=1)[0]
        extras = _EXTRA.findall(line)
        if not extras:
            needed.append(name)
        elif name != DISTRIBUTION and not set(extras) & set(_OURS):
            optional.append(name)
    return needed, [each for each in dict.fromkeys(optional) if each not in needed]


def backends() -> list[Check]:
    """Look at which backends can be built."""
    try:
        offers = default_registry().offers()
    except ConfigError as error:  # with PPARALLEL_STRICT_PLUGINS
        return [Check("backends", "fail", _one_line(str(error)), "repair or uninstall that plugin")]
    ready = [each for each in offers if each.status == "available"]
    counted = Check("backends", "ok", f"{len(ready)} of {len(offers)} can be built")
    return [counted, *(_incomplete(each) for each in offers if each.status == "missing dependency")]


def plugins() -> list[Check]:
    """Look at the distributions that offer backends, and those that cannot be loaded."""
    try:
        offers = default_registry().offers()
    except ConfigError:
        return []  # told among the backends
    broken = [each for each in offers if each.status == "broken"]
    good = {f"{each.package} {each.version}" for each in offers if each not in broken}
    return [Check("plugins", "ok", ", ".join(sorted(good))), *map(_broken, broken)]


def _incomplete(offer: Offer) -> Check:
    missing, _, install = offer.detail.partition("; to install: ")
    advice = install or f"install what {offer.package} needs for it"
    return Check(f"{offer.interface} {offer.name}", "warn", missing, advice)


def _broken(offer: Offer) -> Check:
    which = f"{offer.interface} {offer.name}".strip()
    detail = f"{offer.package} {offer.version} is broken: {_one_line(offer.detail)}"
    advice = "repair, upgrade or uninstall it; or leave it out with PPARALLEL_DISABLE_PLUGINS"
    return Check(f"plugin {which}", "warn", detail, advice)


def _one_line(text: str) -> str:
    """Return the last line, which for a traceback is the error itself."""
    return text.strip().splitlines()[-1] if text.strip() else "no reason is known"


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""
