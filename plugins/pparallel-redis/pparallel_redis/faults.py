"""What is wrong with a server, in words that say what to do."""

from __future__ import annotations

import errno
import socket
import ssl

from pparallel.errors import AuthenticationError, ConfigError, PeerLostError, PparallelError
from pparallel_redis.places import Place
from pparallel_redis.wire import ReplyError

#: what a server answers that cannot do it now, and has done nothing
NOT_NOW = frozenset({"LOADING", "BUSY", "MASTERDOWN", "TRYAGAIN", "CLUSTERDOWN"})
#: what a server answers that is no master: another one is, or will be
NOT_HERE = frozenset({"READONLY"})

_DENIED = frozenset({"NOAUTH", "WRONGPASS", "NOPERM", "DENIED"})
#: what older servers say, and scripts
_DENIED_OTHERWISE = ("invalid password", "AUTH", "can't run this command", "No permission")
_FULL = "its memory is full (maxmemory): nothing was changed, and what was there before still is"


class RedisLostError(PeerLostError):
    """Raised when the Redis server cannot be reached.

    Attributes:
        peer: the server's address.
        reason: what is known.
    """

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason)
        self.args = (f"the Redis server at {address} {reason}",)  # it is no member


def lost(place: Place, seconds: float, error: BaseException, doubt: str = "") -> RedisLostError:
    """Return the error that says that the server stays away."""
    if isinstance(error, ReplyError):
        what, to_do = "could not do its work", "See what it is, and what its log says"
    else:
        what, to_do = "was not to be reached", "See that it runs and that the address is right"
    why = described(error).rstrip(".")
    reason = f"{what} for {seconds:g} s (the option 'timeout'): {why}.{doubt} {to_do}"
    return RedisLostError(str(place), reason)


def silent(place: Place, seconds: float, doubt: str = "") -> RedisLostError:
    """Return the error that says that the server has the question and does not answer."""
    reason = (
        f"has not answered for {seconds:g} s (the option 'timeout').{doubt}"
        " See whether it is stopped, cut off, or busy with something slow"
    )
    return RedisLostError(str(place), reason)


def forgotten(place: Place) -> RedisLostError:
    """Return the error that says that nobody knows whether a change was made."""
    reason = (
        "has been away in the middle of a change, and does not know any more whether that was"
        " made: pull, and go on from what is there"
    )
    return RedisLostError(str(place), reason)


def unsafe(place: Place, found: int, wanted: int) -> RedisLostError:
    """Return the error that says that a change is made, and may be lost in a failover."""
    reason = (
        f"has made the change, and only {found} of {wanted} replicas (the option 'min_replicas')"
        " have it: if the server is lost now, so is the change"
    )
    return RedisLostError(str(place), reason)


def refusal(place: Place, error: ReplyError) -> Exception:
    """Return the error that says what the server refused."""
    text = f"the Redis server at {place} refuses: {str(error).rstrip('.')}"
    if error.code in _DENIED or any(each in str(error) for each in _DENIED_OTHERWISE):
        return AuthenticationError(f"{text}.{_what_to_do(error)}")
    if error.code == "OOM":
        return MemoryError(f"{text}. {_FULL[0].upper()}{_FULL[1:]}")
    if error.code == "MISCONF":
        why = f"{text}. Nothing was changed; look at the server's disk and log"
        return OSError(errno.EIO, why)
    if "DB index" in str(error):
        return ConfigError(f"{text}. The option 'database', or the number in the url, is too large")
    if error.code in ("MOVED", "CROSSSLOT"):
        return ConfigError(f"{text}. A Redis Cluster is not supported: give a single server")
    if error.code == "NOREPLICAS":
        return RedisLostError(str(place), f"has too few replicas and changes nothing: {error}")
    return OSError(errno.EPROTO, text)


def certificate(place: Place, error: ssl.SSLError) -> AuthenticationError:
    """Return the error that says that the server is not believed, or does not believe us."""
    why = getattr(error, "verify_message", "") or error.reason or str(error)
    return AuthenticationError(
        f"no TLS with the Redis server at {place}: {why}. Its certificate must be signed by one"
        " that tls.ca_file holds (else the system's) and bear the address's host (or"
        " tls.server_name); where it asks for ours, tls.cert_file and tls.key_file"
    )


def described(error: BaseException) -> str:
    """Return what *error* says, in words."""
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, socket.gaierror):
        return f"its name is not known ({error.strerror})"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def is_final(error: BaseException) -> bool:
    """Return whether it makes no sense to connect again."""
    return isinstance(error, PparallelError) and not isinstance(error, PeerLostError)


def _what_to_do(error: ReplyError) -> str:
    if error.code == "NOPERM" or "can't run" in str(error) or "No permission" in str(error):
        return " The page on Redis lists what its user must be allowed to do"
    if error.code == "NOAUTH":
        return " Give the option 'password', and 'username' where it has users"
    return " See the options 'username' and 'password'"
