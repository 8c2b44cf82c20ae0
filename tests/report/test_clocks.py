"""Parties of one run on one clock: exactly by their messages, roughly by their rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from celu.record.run import RunRecord
from celu.report.clocks import apart_s
from record.folders import round_event, write_run

STARTED = {"t": 0.0, "event": "started", "num_rounds": 99}


def pair(folder: Path, *, behind: Any = 7.0, extra: int = 0, **job: Any) -> list[RunRecord]:
    """A guest and a host whose clock is behind by so much; messages take 0.1 s each way.

    In round 5 the host sends `extra` messages more, for an evaluation.
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


def test_messages_set_the_clock(tmp_path: Path) -> None:
    here, there = pair(tmp_path)
    assert apart_s(here, here, 50.0) == 0.0
    assert apart_s(here, there, 50.0) == pytest.approx(7.0)


def test_evaluations_in_between_do_not_put_it_out(tmp_path: Path) -> None:
    here, there = pair(tmp_path, extra=20)
    assert apart_s(here, there, 50.0) == pytest.approx(7.0)


def test_nor_does_an_event_that_leaves_messages_out(tmp_path: Path) -> None:
    here, there = pair(tmp_path, extra=64)
    assert apart_s(here, there, 50.0) == pytest.approx(7.0), "by the rounds before it"


def test_a_clock_that_drifts_is_set_by_what_came_last(tmp_path: Path) -> None:
    here, there = pair(tmp_path, behind=lambda n: 7.0 + (0.5 if n > 50 else 0.0))
    assert apart_s(here, there, 45.0) == pytest.approx(7.0)
    assert apart_s(here, there, 99.0) == pytest.approx(7.5)


def test_with_several_hosts_the_ends_of_rounds_set_it(tmp_path: Path) -> None:
    here, there = pair(tmp_path, hosts={"weather": {}, "port": {}})
    assert apart_s(here, there, 50.0) == pytest.approx(6.7), "the host ends its rounds 0.3 s later"


def test_without_anything_in_common_it_stays_as_it_is(tmp_path: Path) -> None:
    here, _ = pair(tmp_path / "one")
    there = RunRecord(write_run(tmp_path / "two", [], party="weather"))
    assert apart_s(here, there, 50.0) == 0.0
