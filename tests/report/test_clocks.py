"""Clock offsets between parties: exact from messages, approximate from rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from celu.record.run import RunRecord
from celu.report.clocks import clock_offset_s
from record.folders import round_event, write_run

STARTED = {"t": 0.0, "event": "started", "num_rounds": 99}


def pair(folder: Path, *, behind: Any = 7.0, extra: int = 0, **job: Any) -> list[RunRecord]:
    """A guest and a host whose clock is `behind`; messages take 0.1 s each way.

    In round 5 the host sends `extra` additional messages, for an evaluation.
    """

    def guest(n: int) -> dict[str, Any]:
        more = [["receive", n - 0.7, n - 0.6]] * (extra if n == 5 else 0)
        return round_event(
            n, seconds=n, spans=[*more, ["receive", n - 0.5, n - 0.4], ["send", n - 0.3, n - 0.2]]
        )

    def host(n: int) -> dict[str, Any]:
        at = n - (behind(n) if callable(behind) else behind)
        more = [["send", at - 0.8, at - 0.7]] * (extra if n == 5 else 0)
        spans = [*more, ["send", at - 0.6, at - 0.5], ["receive", at - 0.2, at - 0.1]]
        return round_event(n, spans=spans, seconds=at + 0.3)

    rounds = range(1, 100)
    return [
        RunRecord(write_run(folder / "a", [STARTED, *map(guest, rounds)], job=job)),
        RunRecord(write_run(folder / "b", [STARTED, *map(host, rounds)], party="weather", job=job)),
    ]


def test_the_offset_follows_from_the_messages(tmp_path: Path) -> None:
    here, there = pair(tmp_path)
    assert clock_offset_s(here, here, 50.0) == 0.0
    assert clock_offset_s(here, there, 50.0) == pytest.approx(7.0)


def test_an_evaluation_does_not_change_the_offset(tmp_path: Path) -> None:
    here, there = pair(tmp_path, extra=20)
    assert clock_offset_s(here, there, 50.0) == pytest.approx(7.0)


def test_an_event_without_all_of_its_messages_ends_the_estimate(tmp_path: Path) -> None:
    here, there = pair(tmp_path, extra=64)
    assert clock_offset_s(here, there, 50.0) == pytest.approx(7.0), "from the rounds before it"


def test_a_drifting_clock_is_estimated_from_the_latest_messages(tmp_path: Path) -> None:
    here, there = pair(tmp_path, behind=lambda n: 7.0 + (0.5 if n > 50 else 0.0))
    assert clock_offset_s(here, there, 45.0) == pytest.approx(7.0)
    assert clock_offset_s(here, there, 99.0) == pytest.approx(7.5)


def test_with_several_hosts_the_offset_comes_from_the_ends_of_rounds(tmp_path: Path) -> None:
    here, there = pair(tmp_path, hosts={"weather": {}, "port": {}})
    assert clock_offset_s(here, there, 50.0) == pytest.approx(6.7), (
        "the host ends its rounds 0.3 s later"
    )


def test_without_common_rounds_the_offset_is_zero(tmp_path: Path) -> None:
    here, _ = pair(tmp_path / "one")
    there = RunRecord(write_run(tmp_path / "two", [], party="weather"))
    assert clock_offset_s(here, there, 50.0) == 0.0
