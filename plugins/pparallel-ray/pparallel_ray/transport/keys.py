"""Who may say what: proofs by the key that the members of a job share."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping, Sequence

from pydantic import SecretStr

from pparallel.errors import ConfigError

KEY = "job"  #: under which a member finds the job's key among its own
LENGTH = 32  #: bytes of a key


def fresh(names: Sequence[str]) -> dict[str, dict[str, SecretStr]]:
    """Return a new key of a job, for each of its members."""
    key = SecretStr(secrets.token_hex(LENGTH))
    return {name: {KEY: key} for name in names}


class JobKey:
    """Proves that bytes are of a member of this job; the key itself is never shown."""

    def __init__(self, keys: Mapping[str, SecretStr]) -> None:
        """Take out the key.

        Raises:
            ConfigError: there is none, or it is too short.
        """
        try:
            self._key = bytes.fromhex(keys[KEY].get_secret_value())
        except (KeyError, ValueError):
            self._key = b""
        if len(self._key) < LENGTH:
            message = (
                "members on Ray share a key: start them with pparallel.launch, which makes one, "
                f"or give each Member(..., keys={{{KEY!r}: SecretStr(...)}}) with the same "
                f"{2 * LENGTH} hexadecimal digits, from secrets.token_hex({LENGTH})"
            )
            raise ConfigError(message, path="transport")

    def of(self, meeting: str) -> JobKey:
        """Return the key of one meeting: keys that people give may be used for several."""
        return JobKey({KEY: SecretStr(self.proof(meeting.encode()).hex())})

    def proof(self, *parts: bytes) -> bytes:
        """Return the proof that *parts* are of a member."""
        whole = b"".join(len(each).to_bytes(8, "little") + each for each in parts)
        return hmac.digest(self._key, whole, "sha256")

    def holds(self, proof: bytes, *parts: bytes) -> bool:
        """Return whether *proof* is that of *parts*."""
        return hmac.compare_digest(proof, self.proof(*parts))
