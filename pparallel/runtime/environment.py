"""The one place where pparallel reads environment variables.

``PPARALLEL_STRICT_PLUGINS``    a plugin that cannot be loaded is fatal
``PPARALLEL_DISABLE_PLUGINS``   names of entry points to leave out, with commas between them
``PPARALLEL__POOL__SIZE``       an option of the config: here ``pool.size``
``RANK``, ``WORLD_SIZE``, ...   what torchrun tells the processes it starts
``PPARALLEL_MACHIN_TRANSPORT``, ``PPARALLEL_MACHIN_KEYS``, ``PPARALLEL_MACHIN_ALLOW_INSECURE``
                                how the members of a world of ``compat.machin`` are connected
``CI``                          tests are run by a machine that is to have every backend
"""

from __future__ import annotations

import os
from collections.abc import Set
from dataclasses import dataclass
from urllib.parse import quote

from pparallel.errors import ConfigError

_OVERRIDE = "PPARALLEL__"
#: as this process was started; secrets that are taken out of the environment are found here
_at_start = {name: text for name, text in os.environ.items() if name.startswith(_OVERRIDE)}
_taken_out: set[str] = set()
_FALSE = frozenset({"", "0", "false", "no", "off"})


@dataclass(frozen=True, slots=True)
class Torchrun:
    """What torchrun said of this process.

    Attributes:
        rank: its number in the job.
        local_rank: its number on its machine.
        world_size: how many processes the job has.
        master_addr: the machine where they meet; ``None`` if it is not said.
        master_port: the port there; ``None`` if it is not said.
        run_id: which job it is; empty if it is not said.
        restart: how often the job's processes have been started again.
        machines: how many machines the job runs on.
        keeps_store: whether torchrun itself listens where they meet; else the first of them does.
    """

    rank: int
    local_rank: int
    world_size: int
    master_addr: str | None = None
    master_port: int | None = None
    run_id: str = ""
    restart: int = 0
    machines: int = 1
    keeps_store: bool = False

    @property
    def address(self) -> str | None:
        """Where the processes of this start of the job meet; ``None`` if torchrun does not say.

        It names the store that torchrun keeps there, in which they leave one another their
        addresses (:mod:`pparallel.runtime.exchange`): nothing else can listen on that port.
        """
        if self.master_addr is None or self.master_port is None:
            return None
        host = f"[{self.master_addr}]" if ":" in self.master_addr else self.master_addr
        job = quote(self.run_id, safe="") or "none"
        return f"torchrun://{host}:{self.master_port}/{job}/{self.restart}"


@dataclass(frozen=True, slots=True)
class MachinWorld:
    """How the members of a world of :mod:`pparallel.compat.machin` are connected.

    Attributes:
        transport: the name of a backend.
        keys: the path of this member's key file; ``None``: it has none.
        allow_insecure: whether members on several machines do without keys.
    """

    transport: str
    keys: str | None
    allow_insecure: bool


def strict_plugins() -> bool:
    """Return whether a plugin that cannot be loaded is fatal."""
    return os.environ.get("PPARALLEL_STRICT_PLUGINS", "").strip().lower() not in _FALSE


def disabled_plugins() -> frozenset[str]:
    """Return the names of the entry points to leave out."""
    names = os.environ.get("PPARALLEL_DISABLE_PLUGINS", "").split(",")
    return frozenset(name.strip() for name in names if name.strip())


def continuous_integration() -> bool:
    """Return whether this process runs where every push is tested."""
    return os.environ.get("CI", "").strip().lower() not in _FALSE


def overrides() -> list[tuple[list[str], str]]:
    """Return the options that the environment sets: the path of each key, and its text.

    Raises:
        ConfigError: a variable's name has an empty part.
    """
    found = []
    there = {name: _at_start[name] for name in _taken_out} | os.environ
    for variable in sorted(there):
        if variable.startswith(_OVERRIDE):
            path = variable.removeprefix(_OVERRIDE).lower().split("__")
            if not all(path):
                message = (
                    "the name of a variable that sets an option has the form"
                    " PPARALLEL__SECTION__KEY"
                )
                raise ConfigError(message, source=variable)
            found.append((path, there[variable]))
    return found


def take_out(secrets: Set[str]) -> None:
    """Remove the values of *secrets*, options of these names, from the environment.

    The programs that this process starts inherit it. :func:`overrides` finds them still.
    """
    for name, text in _at_start.items():
        path = name.removeprefix(_OVERRIDE).lower().split("__")
        if not secrets.isdisjoint(path) and os.environ.get(name) == text:
            _taken_out.add(name)
            del os.environ[name]


def machin_world() -> MachinWorld:
    """Return how the members of a world are connected."""
    return MachinWorld(
        os.environ.get("PPARALLEL_MACHIN_TRANSPORT", "").strip().lower() or "zmq",
        os.environ.get("PPARALLEL_MACHIN_KEYS") or None,
        os.environ.get("PPARALLEL_MACHIN_ALLOW_INSECURE", "").strip().lower() not in _FALSE,
    )


def torchrun() -> Torchrun | None:
    """Return what torchrun said of this process, None where it did not start it.

    Raises:
        ConfigError: one of its variables is not a number, or they contradict one another.
    """
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return None
    rank, size = _number("RANK"), _number("WORLD_SIZE")
    if rank >= size:
        message = f"the rank is less than WORLD_SIZE, and that is {size}; it is {rank}"
        raise ConfigError(message, source="RANK")
    return Torchrun(
        rank,
        _number("LOCAL_RANK") if "LOCAL_RANK" in os.environ else rank,
        size,
        *master(),
        os.environ.get("TORCHELASTIC_RUN_ID", ""),
        _number("TORCHELASTIC_RESTART_COUNT") if "TORCHELASTIC_RESTART_COUNT" in os.environ else 0,
        _number("GROUP_WORLD_SIZE") if "GROUP_WORLD_SIZE" in os.environ else 1,
        os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def master() -> tuple[str | None, int | None]:
    """Return the machine and the port where the processes of a job meet, as far as that is said.

    Raises:
        ConfigError: the port is not a number.
    """
    port = _number("MASTER_PORT") if os.environ.get("MASTER_PORT") else None
    return os.environ.get("MASTER_ADDR") or None, port


def _number(variable: str) -> int:
    text = os.environ[variable]
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        message = (
            f"{text!r} is not a number; torchrun sets this variable: "
            "unset it if this process was not started by torchrun"
        )
        raise ConfigError(message, source=variable)
    return number
