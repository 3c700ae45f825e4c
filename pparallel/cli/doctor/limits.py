"""How many files may be open at once."""

from __future__ import annotations

from pparallel.cli.doctor.check import Check

ENOUGH = 4096  #: each connection and each tensor shared between processes takes a descriptor
PLENTY = 65536


def open_files() -> list[Check]:
    """Look at the limits on file descriptors."""
    import resource  # not on every platform

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    infinite = resource.RLIM_INFINITY
    return [judged_open_files(*(None if each == infinite else each for each in (soft, hard)))]


def judged_open_files(soft: int | None, hard: int | None) -> Check:
    """Return what to think of such limits; ``None``: there is none."""
    detail = f"at most {_said(soft)}, which may be raised to {_said(hard)}"
    if soft is None or soft >= ENOUGH:
        return Check("open files", "ok", detail)
    if hard is None or hard >= ENOUGH:
        reach = PLENTY if hard is None else min(hard, PLENTY)
        advice = f"raise it before large jobs: ulimit -n {reach}"
    else:
        advice = (
            f"raise it for large jobs: docker run --ulimit nofile={PLENTY},"
            " or nofile in /etc/security/limits.conf"
        )
    return Check("open files", "warn", detail, advice)


def _said(limit: int | None) -> str:
    return "any number" if limit is None else str(limit)
