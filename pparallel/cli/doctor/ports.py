"""Whether members can meet at ports."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from pathlib import Path

from pparallel.cli.doctor.check import Check

LOOPBACK = "127.0.0.1"
TYPICAL = (29500, 9100)  #: where torchrun's members meet by default, and machin's
FEW = 1000
RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def loopback() -> list[Check]:
    """See whether this machine can talk to itself."""
    try:
        with (
            socket.create_server((LOOPBACK, 0)) as server,
            socket.create_connection(server.getsockname(), timeout=5),
        ):
            return [Check("loopback", "ok", f"{LOOPBACK} can be bound and reached")]
    except OSError as error:
        advice = "let programs listen on the loopback interface: is 'lo' up, does a sandbox forbid?"
        detail = f"{LOOPBACK} cannot be reached: {error.strerror or error}"
        return [Check("loopback", "fail", detail, advice)]


def ephemeral(path: Path = RANGE) -> list[Check]:
    """See how many ports the system can hand out."""
    low, high = map(int, path.read_text().split())
    count = high - low + 1
    detail = f"{low} to {high}: {count}"
    if count >= FEW:
        return [Check("ephemeral ports", "ok", detail)]
    advice = "widen it: sysctl net.ipv4.ip_local_port_range='32768 60999'"
    return [Check("ephemeral ports", "warn", detail, advice)]


def rendezvous(wanted: Sequence[int]) -> list[Check]:
    """See which of the ports *wanted* are free."""
    return [_port(each) for each in wanted]


def _port(number: int) -> Check:
    name = f"port {number}"
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
        try:
            trial.bind(("", number))
            trial.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                detail = "another program listens there"
                advice = f"choose another port for what was to meet at {number}, or end it"
            else:
                detail, advice = f"it cannot be bound: {error.strerror}", "choose another port"
            return Check(name, "warn", detail, advice)
    return Check(name, "ok", "free")
