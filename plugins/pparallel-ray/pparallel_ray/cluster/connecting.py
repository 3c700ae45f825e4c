"""How a process is connected to a Ray cluster, and starts one."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import ray
from ray._private.worker import WORKER_MODE, global_worker
from ray.exceptions import RayError

from pparallel.errors import AuthenticationError, ConfigError, PparallelError
from pparallel_ray.cluster import own
from pparallel_ray.cluster.config import RayConnection
from pparallel_ray.cluster.tokens import read_again, token_required

logger = logging.getLogger(__name__)

_CONNECTING = 5.0  #: seconds that the first connection may take
_LOCAL = "local"  #: instead of an address: a new cluster


def is_connected() -> bool:
    """Return whether this process is connected to a cluster."""
    return bool(ray.is_initialized())


def address() -> str:
    """Return where the cluster is found that this process is connected to."""
    found: str = ray.get_runtime_context().gcs_address
    return found


def check_same(wanted: RayConnection) -> None:
    """Refuse to take the cluster that this process is connected to for another that is wanted.

    In a process that Ray started there is nothing to choose.

    Raises:
        ConfigError: another is wanted.
    """
    if global_worker.mode == WORKER_MODE or wanted.address in (None, "auto"):
        return
    if _parts(wanted.address) == _parts(address()):
        return
    message = (
        f"this process is connected to the Ray cluster at {address()} and cannot be to "
        f"{wanted.address} as well: leave 'address' out to use the one, or close it first"
    )
    raise ConfigError(message, path="cluster.address")


def connected(wanted: RayConnection) -> ExitStack:
    """Connect to the cluster that is wanted, or start it; return what undoes that.

    Raises:
        ConfigError: there is no such cluster, or it is of another version.
        AuthenticationError: it wants a token that this process does not have.
        PparallelError: none can be started.
    """
    where = wanted.address or os.environ.get("RAY_ADDRESS") or _LOCAL
    options = {"namespace": wanted.namespace, "runtime_env": dict(wanted.runtime_env) or None}
    if "://" in where:
        message = "Ray Client is not supported: give 'address: auto' on a machine of the cluster"
        raise ConfigError(message, path="cluster.address", source="RAY_ADDRESS")
    with ExitStack() as undo:
        if where == _LOCAL:
            _start(wanted, options, undo)
        else:
            undo.callback(_end)
            with _explained(where), own.on_loopback() if _is_loopback(where) else nullcontext():
                _check_listening(where)
                read_again()
                _initialise(where, **options)
            logger.info("connected to the Ray cluster at %s", address())
        return undo.pop_all()


def _start(wanted: RayConnection, options: dict[str, Any], undo: ExitStack) -> None:
    undo.enter_context(token_required())
    folder = undo.enter_context(own.folder())
    size = {
        "num_cpus": wanted.num_cpus,
        "num_gpus": wanted.num_gpus,
        "resources": dict(wanted.resources) or None,
        "object_store_memory": wanted.object_store_memory,
    }

    def start() -> None:
        with own.on_loopback():
            _initialise(_LOCAL, **options, **size, include_dashboard=False, _temp_dir=folder)

    try:
        undo.enter_context(own.lasting(start))
    except (OSError, RuntimeError, ValueError, RayError) as error:
        message = f"Ray cannot start a cluster on this machine: {_words(error)}"
        raise PparallelError(message) from error
    undo.callback(_end)
    logger.info("started a Ray cluster at %s", address())


def _initialise(where: str, **options: Any) -> None:
    os.environ.setdefault("RAY_TQDM_PATCH_PRINT", "0")  # else Ray puts its own in place of print
    with _undisturbed(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what Ray will change, and of descriptors it leaves
        ray.init(where, log_to_driver=False, configure_logging=False, **options)


def _end() -> None:
    if is_connected():
        with _undisturbed(), warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            ray.shutdown(wait_for_processes=True)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Keep what ``ray.init`` says of itself, and the handler of SIGTERM that it replaces."""
    rays = logging.getLogger("ray")
    level = rays.level
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM) if is_main else None
    rays.setLevel(logging.ERROR)
    try:
        yield
    finally:
        rays.setLevel(level)
        if is_main and handler is not None:
            signal.signal(signal.SIGTERM, handler)


def _parts(where: str | None) -> tuple[str, str]:
    host, _, port = (where or "").rpartition(":")
    with_name = {"localhost": "127.0.0.1"}
    return with_name.get(host, host), port


def _is_loopback(where: str) -> bool:
    return _parts(where)[0] == "127.0.0.1"


def _check_listening(where: str) -> None:
    """Fail at once where nothing listens: Ray would go on trying for about a minute."""
    host, port = _parts(where)
    if host and port.isdecimal():
        with socket.create_connection((host.strip("[]"), int(port)), _CONNECTING):
            pass


@contextmanager
def _explained(where: str) -> Iterator[None]:
    """Say what to do where a cluster cannot be connected to."""
    try:
        yield
    except (OSError, RuntimeError, ValueError, RayError) as error:
        said = _words(error)
        if _is_of_token(error):
            message = (
                f"the Ray cluster at {where} wants a token: set RAY_AUTH_MODE=token, and "
                "RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to the token that it was started with "
                f"({said})"
            )
            raise AuthenticationError(message) from error
        message = (
            f"the Ray cluster at {where} cannot be used: {said}; see that "
            f"'ray status --address {where}' works here, with the same versions of Ray and Python "
            "as there, and the cluster's token in RAY_AUTH_TOKEN if it has one; or leave 'address' "
            "out to start a cluster on this machine"
        )
        raise ConfigError(message, path="cluster.address") from error


def _is_of_token(error: BaseException) -> bool:
    seen: BaseException | None = error
    while seen is not None:
        if "uthenticat" in f"{type(seen).__name__}: {seen}":
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def _words(error: BaseException) -> str:
    return " ".join(str(error).split())[:400] or type(error).__name__
