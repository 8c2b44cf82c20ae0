"""What a party prints without a terminal while it waits for its peers, and while it trains."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cli.pair import DEADLINE_S, Pair, pair_at


@pytest.fixture
def pair(tmp_path: Path, keys: Path) -> Pair:
    return pair_at(tmp_path, keys)


def first_line(pair: Pair, name: str, command: str) -> str:
    """What a party prints first, with no peer there."""
    process = pair.start(name, command=command)
    assert process.stdout is not None
    line = process.stdout.readline()
    process.kill()
    process.communicate(DEADLINE_S)
    return line.strip()


def test_a_party_that_dials_says_whom_it_waits_for_and_how_long(pair: Pair) -> None:
    whom = f"waiting for airline at localhost:{pair.port}, up to 600 s"
    assert first_line(pair, "weather", "run") == f"weather: 1,024 rows to train on; {whom}"
    pair.edit("weather/party.toml", "aligned = true", 'alignment = "common"')
    assert first_line(pair, "weather", "align") == f"weather: {whom}"


def test_only_the_host_prints_rounds_since_it_has_no_evaluations(pair: Pair) -> None:
    guest, host = pair.run()
    assert (guest.code, host.code) == (0, 0), guest.err
    assert "airline: 1,024 rows to train on; waiting for weather, up to 600 s" in guest.out
    assert len(re.findall(r"^weather: round \d+ of 60, .* MB", host.out, re.M)) == 10
    assert " of 60, " not in guest.out
    assert len(re.findall(r"^airline: round \d+ auc ", guest.out, re.M)) == 3
