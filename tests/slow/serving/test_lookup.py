"""Hosts that serve current features from their own systems: the examples, with real databases."""

from __future__ import annotations

import csv
import shutil
import socket
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from celu.testing import free_port
from slow.serving.served import COMMON, DEADLINE_S, GUEST, HOST, Served, wait_until

EXAMPLES = Path(__file__).parents[3] / "examples" / "features"
IDS = [f"shared-{n}" for n in range(COMMON)]


def raw_rows(folder: Path) -> list[dict[str, str]]:
    with (folder / HOST / "raw.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def check(served: Served) -> tuple[list[float], list[float]]:
    """The scores of the store's features, and those of the same ids from the feature service."""
    served.start(GUEST)
    host = served.start(HOST)
    served.wait_until_complete()
    stored = served.infer(IDS[:20])
    assert not any(stored.degraded)
    assert host.end() == 0
    served.serve[HOST] = f'lookup = "{served.lookup}:Features"\n'
    served.start(HOST)
    served.wait_until_complete()
    found = served.infer(IDS[:20])
    assert not any(found.degraded)
    return stored.scores, found.scores


def test_features_from_sqlite(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    path = served.folder / "features.db"
    rows = raw_rows(served.folder)
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE features (id TEXT PRIMARY KEY, wind REAL, sky TEXT)")
        values = [(row["flight"], float(row["wind"]), row["sky"]) for row in rows]
        database.executemany("INSERT INTO features VALUES (?, ?, ?)", values)
    monkeypatch.setenv("FEATURES_DB", str(path))
    shutil.copy(EXAMPLES / "sqlite_features.py", served.folder / HOST)
    served.lookup = "sqlite_features"
    stored, found = check(served)
    assert found == pytest.approx(stored, abs=1e-6)
    with sqlite3.connect(path) as database:
        database.execute("UPDATE features SET wind = 50.0 WHERE id = ?", (IDS[0],))
        database.execute("DELETE FROM features WHERE id = ?", (IDS[1],))
    changed = served.infer(IDS[:1])
    assert changed.degraded == [False] and changed.scores != pytest.approx(stored[:1], abs=1e-4)
    assert served.infer(IDS[1:2]).missing == [HOST]  # it is not there now
    assert served.infer(IDS[:4]).missing == ["", HOST, "", ""]  # ... and the others still are
    assert served.infer(IDS[2:3]).scores == pytest.approx(stored[2:3], abs=1e-6)


@contextmanager
def redis_server(port: int, folder: Path) -> Iterator[None]:
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("redis-server is not installed (Debian package redis-server)")
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir"]
    process = subprocess.Popen([*command, str(folder)], stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: _accepts(port))
        yield
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), DEADLINE_S).close()
    except OSError:
        return False
    return True


def command(port: int, *words: str) -> bytes:
    """Send one command to Redis, and return its answer."""
    parts = [word.encode() for word in words]
    data = b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts)
    with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as connection:
        connection.sendall(data)
        return connection.recv(65536)


def test_features_from_redis(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    with redis_server(port, served.folder):
        for row in raw_rows(served.folder):
            key = f"features:{row['flight']}"
            assert command(port, "HSET", key, "wind", row["wind"], "sky", row["sky"]) == b":2\r\n"
        monkeypatch.setenv("FEATURES_REDIS", f"127.0.0.1:{port}")
        shutil.copy(EXAMPLES / "redis_features.py", served.folder / HOST)
        served.lookup = "redis_features"
        stored, found = check(served)
        assert found == pytest.approx(stored, abs=1e-6)
        command(port, "DEL", f"features:{IDS[1]}")
        assert served.infer(IDS[1:2]).missing == [HOST]
        # An error for one row leaves no reply behind that the next ask would take for its own.
        assert command(port, "SET", f"features:{IDS[1]}", "no hash") == b"+OK\r\n"
        assert served.infer(IDS[1:4]).missing == [HOST, "", ""]
        assert served.infer(IDS[4:20]).scores == pytest.approx(stored[4:20], abs=1e-6)
    assert served.infer(IDS[2:3]).missing == [HOST]  # Redis is down, the host is not
    with redis_server(port, served.folder):
        command(port, "HSET", f"features:{IDS[2]}", "wind", "1.0", "sky", "sky 1")
        assert served.infer(IDS[2:3]).degraded == [False]
