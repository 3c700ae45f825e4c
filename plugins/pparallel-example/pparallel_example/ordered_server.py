"""An ordered server in a folder: one file for each key, replaced as a whole by each push."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from pparallel.interfaces.ordered_server import Found, check_version
from pparallel.interfaces.serializer import Serializer
from pparallel.runtime.file_lock import locked
from pparallel.runtime.member import Member
from pparallel.runtime.naming import decode, encode
from pparallel.runtime.polling_server import PollingOrderedServer
from typing_extensions import override

from pparallel_example.ordered_server_config import (
    ExampleOrderedServerConfig,
)


class ExampleOrderedServer(PollingOrderedServer):
    """Keeps values in files: what was acknowledged survives the end of every process."""

    def __init__(
        self, config: ExampleOrderedServerConfig, *, member: Member, serializer: Serializer
    ) -> None:
        super().__init__(config.poll)
        self._folder = config.path
        self._depth = config.version_depth
        self._serializer = serializer
        self._locked = partial(locked, config.path / "lock", config.timeout)

    @override
    def open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        super().open()

    @override
    def push(
        self, key: Hashable, value: Any, version: Hashable, prev_version: Hashable | None
    ) -> bool:
        check_version(version, prev_version)
        encode("a version", version)  # refuses what a file cannot hold
        path, pending = self._path(key), self._folder / "pending"
        buffers = tuple(bytes(each) for each in self._serializer.dumps(value))
        with self._locked():
            held = dict(_read(path)[1:])
            if held and next(reversed(held)) != prev_version:
                return False
            held.pop(version, None)
            newest = [*held.items(), (version, buffers)][-self._depth :]
            pending.write_bytes(encode("a file", (key, *newest)))
            pending.replace(path)  # whoever reads finds the old file or the new one
        return True

    @override
    def fetch(self, key: Hashable, version: Hashable | None) -> Found | None:
        held = dict(_read(self._path(key))[1:])
        wanted = next(reversed(held), None) if version is None else version
        if wanted not in held:
            return None
        return self._serializer.loads([bytearray(each) for each in held[wanted]]), wanted

    @override
    def versions(self, key: Hashable) -> list[Any]:
        return [version for version, _ in _read(self._path(key))[1:]]

    @override
    def keys(self) -> list[Any]:
        self.check_open()
        contents = (_read(each) for each in self._folder.iterdir() if each.suffix == ".key")
        return [content[0] for content in contents if content]

    @override
    def delete(self, key: Hashable) -> bool:
        path = self._path(key)
        with self._locked():
            was_held = path.exists()
            path.unlink(missing_ok=True)
        return was_held

    def _path(self, key: Hashable) -> Path:
        self.check_open()
        return self._folder / f"{sha256(encode('a key', key)).hexdigest()}.key"


def _read(path: Path) -> tuple[Any, ...]:
    """Return the key, and its versions with their buffers, the oldest first; or nothing."""
    try:
        content: tuple[Any, ...] = decode(path.read_bytes())
    except FileNotFoundError:
        path.parent.stat()  # raises if the folder is gone too: that is not the same as empty
        return ()
    return content
