"""A host's current features from Redis, for `celu serve`: one hash for each id.

In party.toml, beside this file:

    [serve]
    lookup = "redis_features:Features"

    HSET features:ID wind 3.5 sky cloudy

The address is in the environment variable FEATURES_REDIS, as HOST:PORT. Redis returns text, which
is parsed as in a CSV file. This example needs no package; with a pool of connections and TLS, use
the package redis.
"""

import os
import socket
from typing import Any


class Features:
    def __init__(self) -> None:
        host, port = os.environ["FEATURES_REDIS"].rsplit(":", 1)
        self._address = host, int(port)
        self._connection: Any = None  # a file, when it is idle

    def lookup(self, ids: list[str]) -> list[dict[str, Any] | None]:
        try:
            return self._ask(ids)
        except OSError:  # Redis restarted, or closed an idle connection: connect once more
            return self._ask(ids)

    def _ask(self, ids: list[str]) -> list[dict[str, Any] | None]:
        # After an error the connection is not used again: it may hold replies about other rows.
        file, self._connection = self._connection or self._connect(), None
        for row_id in ids:  # all at once: one round trip for any number of rows
            key = f"features:{row_id}".encode()
            file.write(b"*2\r\n$7\r\nHGETALL\r\n$%d\r\n%s\r\n" % (len(key), key))
        file.flush()
        found = [_read(file) for _ in ids]
        self._connection = file
        return [dict(zip(row[::2], row[1::2], strict=True)) if row else None for row in found]

    def _connect(self) -> Any:
        return socket.create_connection(self._address, timeout=1.0).makefile("rwb")


def _read(file: Any) -> Any:
    """One reply of the Redis protocol (RESP2)."""
    line = file.readline()
    if not line.endswith(b"\r\n"):
        raise ConnectionError("Redis closed the connection")
    kind, rest = line[:1], line[1:-2]
    if kind == b"*":
        return [_read(file) for _ in range(int(rest))]
    if kind == b"$":
        return file.read(int(rest) + 2)[:-2].decode()
    raise OSError(f"Redis answered: {line!r}")
