"""The ports of parties that tests, demos and benches start on one machine."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from celu import testing


def test_a_free_port_is_none_that_outgoing_connections_get() -> None:
    ports = {testing.free_port() for _ in range(50)}
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert len(ports) > 40
    if first > 20_000:
        assert max(ports) < first
    for port in ports:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", port))


def test_a_port_that_is_in_use_is_not_free(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        used = listener.getsockname()[1]
        monkeypatch.setattr(testing, "_FIRST_PORT", used)
        monkeypatch.setattr(testing, "_ATTEMPTS", 1)
        outgoing = tmp_path / "range"
        outgoing.write_text(f"{used + 2}\t60999\n")
        monkeypatch.setattr(testing, "_OUTGOING_PORTS", outgoing)
        assert all(testing.free_port() != used for _ in range(20))


@pytest.mark.parametrize("text", [None, "", "x y", "1024 60999"])
def test_a_port_is_found_where_few_ports_are_left_or_the_range_is_unknown(
    text: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    outgoing = tmp_path / "range"
    if text is not None:
        outgoing.write_text(text)
    monkeypatch.setattr(testing, "_OUTGOING_PORTS", outgoing)
    assert 1024 <= testing.free_port() < 65536
