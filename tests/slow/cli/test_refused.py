"""A party that waits for its peer prints why a client was refused, while it waits."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.pair import Pair, ended, pair_at


@pytest.fixture
def pair(tmp_path: Path, keys: Path) -> Pair:
    return pair_at(tmp_path, keys)


@pytest.mark.parametrize("carrier", ["grpc", "websocket"])
def test_a_guest_with_the_wrong_authority_of_its_host_says_so_at_once(
    pair: Pair, keys: Path, carrier: str
) -> None:
    for name in ("airline", "weather"):
        pair.edit(f"{name}/party.toml", "connect_s", f'carrier = "{carrier}"\nconnect_s')
    wrong = keys / "stranger" / "certs" / "ca.pem"
    pair.edit("airline/party.toml", "../weather/certs/ca.pem", str(wrong))
    guest = pair.start("airline")
    host = ended(pair.start("weather"))
    assert host.code == 6 and "rejected our certificate" in host.err
    assert guest.stdout is not None
    printed = ""
    while "could not connect" not in printed:  # connect_s is 600 s, the test's deadline shorter
        line = guest.stdout.readline()
        assert line, printed
        printed += line
    assert "peers.weather.ca" in printed
    guest.kill()
    guest.communicate()
