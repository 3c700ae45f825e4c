"""The ordered server ``sqlite``: values in a file, durable, for the processes of one machine."""

from pparallel_servers.sqlite.server import SqliteOrderedServer

__all__ = ["SqliteOrderedServer"]
