"""Values in a file that outlives the job."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from typing_extensions import override

from pparallel.errors import ConfigError
from pparallel.interfaces.serializer import Serializer
from pparallel.runtime.client_server import ClientOrderedServer, check_trust, kind_of
from pparallel.runtime.member import Member
from pparallel_servers.config import SqliteOrderedServerConfig
from pparallel_servers.sqlite.client import SqliteClient
from pparallel_servers.sqlite.file import Options, keep_serializer, serializer_of
from pparallel_servers.sqlite.place import Place
from pparallel_servers.sqlite.sharing import join, leave


class SqliteOrderedServer(ClientOrderedServer):
    """Keeps values in an sqlite file that any process of this machine may use.

    Each push is one transaction. Nothing of the file is read as a value before it is known which
    serializer wrote it.
    """

    def __init__(
        self,
        config: SqliteOrderedServerConfig,
        *,
        member: Member,
        serializer: Serializer,
        name: str,
    ) -> None:
        self._config = config
        self._serializer = serializer
        self._name = name
        self._kind = kind_of(serializer)
        check_trust(
            serializer, trusted=config.trusted, source="a file", writable="the file", path=name
        )

    @override
    def open(self) -> None:
        path = self._path()
        config = self._config
        options = Options(config.synchronous, config.timeout, config.poll)
        with ExitStack() as undo:
            place = self._joined(path, options)
            undo.callback(leave, place)
            self._check_serializer(place)
            self._client = SqliteClient(place, self._serializer, config.version_depth)
            undo.pop_all()

    def _path(self) -> Path:
        """Return where the file is, whatever links lead there."""
        path = self._config.path.expanduser()
        why = ""
        if path.is_dir():
            why = "is a folder: give the path of a file"
        elif not path.parent.is_dir():
            why = f"cannot be made: there is no folder {path.parent}"
        elif path.exists() and not path.is_file():
            why = "is no regular file"
        if why:
            raise ConfigError(f"{path} {why}", path=f"{self._name}.path")
        return path.resolve()

    def _joined(self, path: Path, options: Options) -> Place:
        try:
            return join(path, options)
        except ConfigError as error:
            raise ConfigError(str(error), path=f"{self._name}.path") from error

    def _check_serializer(self, place: Place) -> None:
        """Refuse values that another serializer wrote, before any is read."""
        with place.reading() as connection:
            written_by = serializer_of(connection)
        if written_by is None:
            with place.writing() as connection:
                written_by = serializer_of(connection)
                if written_by is None:
                    keep_serializer(connection, self._kind)
        if written_by in (None, self._kind):
            return
        message = (
            f"{self._config.path} holds values written by the serializer {written_by!r}, and this"
            f" one reads with {self._kind!r}: write serializer: {{backend: {written_by}}}"
            " (and trusted: true if that one may run code, and you trust all who can write to the"
            " file), or give the path of another file"
        )
        raise ConfigError(message, path=f"{self._name}.serializer")
