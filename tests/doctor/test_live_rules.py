"""Warnings about runs, from records written by hand: each where it is due, and only there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from celu.doctor.live_rules import RULES, RunStatus, warnings
from celu.record.run import RunRecord
from record.folders import JOB, events, round_event, write_run

Event = dict[str, Any]
BEGIN: list[Event] = [
    {"t": 0.0, "event": "attempt", "number": 1},
    {"t": 0.9, "event": "connected", "peers": ["weather"], "secure": True},
    {"t": 1.0, "event": "started", "num_rounds": 40},
]


def told(
    folder: Path, happened: list[Event] | None = None, *, quiet_s: float = 0.0, **more: Any
) -> dict[str, str]:
    """Each warning's words and advice in one, by what it is about."""
    record = RunRecord(write_run(folder / "run", happened, **more))
    found = warnings(RunStatus.of(record, quiet_s))
    assert all(f.level == "warn" and f.words and f.change for f in found)
    return {f.what: f"{f.words} -> {f.change}" for f in found}


def busy(wait: float, send: float, receive: float, count: int = 30, **more: Any) -> list[Event]:
    """Rounds of half a second, in which so much of the time is spent so."""
    happened = list(BEGIN)
    for n in range(1, count + 1):
        begin = 0.5 * (n - 1)
        spans = [
            ["wait", begin, begin + 0.5 * wait],
            ["compute", begin + 0.5 * wait, begin + 0.5],
            ["send", begin, begin + 0.5 * send],
            ["receive", begin, begin + 0.5 * receive],
        ]
        happened.append(round_event(n, spans=spans, waited_s=0.5 * wait * n, **more))
    return happened


def test_a_run_in_which_all_is_well_is_told_nothing(tmp_path: Path) -> None:
    assert told(tmp_path, busy(0.3, 0.6, 0.6)) == {}


def test_a_run_that_is_done_is_told_nothing_of_silence_or_links(tmp_path: Path) -> None:
    down = {"t": 20.0, "event": "link_down", "peer": "weather", "reason": "gone"}
    happened = [*busy(0.3, 0.6, 0.6), down]
    assert told(tmp_path, happened, quiet_s=1e6, summary={"status": "done"}) == {}


def test_computing_that_idles_is_told_to_use_the_wait(tmp_path: Path) -> None:
    found = told(tmp_path, busy(0.6, 0.5, 0.5))
    assert set(found) == {"computing"}
    assert "idle 60% of the time" in found["computing"] and "R = 3 here" in found["computing"]
    assert "codec" not in found["computing"]


def test_where_the_link_is_full_fewer_bytes_are_the_advice(tmp_path: Path) -> None:
    assert 'codec = "int8"' in told(tmp_path, busy(0.6, 0.1, 0.9))["computing"]


def test_with_auto_nobody_is_told_to_change_the_method(tmp_path: Path) -> None:
    job = {"method": {**JOB["method"], "auto": True}}
    found = told(tmp_path, busy(0.6, 0.1, 0.1), job=job)
    assert set(found) == {"computing", "link"}
    assert "job.toml" not in found["computing"] + found["link"]


def test_a_link_that_idles_while_a_party_waits_wants_more_in_flight(tmp_path: Path) -> None:
    found = told(tmp_path, busy(0.6, 0.1, 0.2))["link"]
    assert "in use 10% of the time to send, 20% to receive" in found and "depth = 2" in found


def test_the_depth_that_auto_or_a_choice_gave_is_the_one_to_raise(tmp_path: Path) -> None:
    choice = {"t": 2.0, "event": "choice", "round": 0, "until": 40, "seconds": 0.0, "depth": 4}
    happened = [*BEGIN, {**choice, "reason": "as written"}, *busy(0.6, 0.1, 0.2)[3:]]
    assert "depth = 8" in told(tmp_path, happened)["link"]


def test_a_link_that_idles_because_of_computing_is_no_limit(tmp_path: Path) -> None:
    found = told(tmp_path, busy(0.1, 0.1, 0.2))
    assert set(found) == {"link"} and "computing is what a round takes" in found["link"]


def test_the_first_rounds_are_not_judged(tmp_path: Path) -> None:
    assert told(tmp_path, busy(0.9, 0.0, 0.0, count=8)) == {}


def test_batches_of_which_most_rows_count_for_nothing_are_told_of(tmp_path: Path) -> None:
    low = {"similarity_quantiles": [-0.5, 0.1, 0.2, 0.3, 0.6, 1.0]}
    found = told(tmp_path / "a", busy(0.3, 0.6, 0.6, **low))
    assert set(found) == {"similarity"} and "0.30, below cos(xi) = 0.50" in found["similarity"]
    wide = {"method": {**JOB["method"], "xi": {"guest": 85, "host": 60}}}
    assert told(tmp_path / "b", busy(0.3, 0.6, 0.6, **low), job=wide) == {}
    none = {"method": {**JOB["method"], "weighting": "none"}}
    assert told(tmp_path / "c", busy(0.3, 0.6, 0.6, **low), job=none) == {}


def test_a_link_that_is_down_is_told_of_until_it_is_up(tmp_path: Path) -> None:
    down = {"t": 20.0, "event": "link_down", "peer": "weather", "reason": "silent for 20 s"}
    happened = [*busy(0.3, 0.6, 0.6), down]
    found = told(tmp_path / "a", happened, quiet_s=90.0)
    assert set(found) == {"link to weather"}  # and not a silence: it is known why
    assert "down for 90.00 s: silent for 20 s" in found["link to weather"]
    assert "10.0 min (outage_s)" in found["link to weather"]
    up = {"t": 21.0, "event": "link_up", "peer": "weather", "seconds": 1.0}
    assert told(tmp_path / "b", [*happened, up]) == {}
    again = {"t": 30.0, "event": "attempt", "number": 2}
    assert told(tmp_path / "c", [*happened, again]) == {}


def test_a_run_whose_peers_do_not_come_names_them(tmp_path: Path) -> None:
    waits = BEGIN[:1]
    assert told(tmp_path / "a", waits, quiet_s=5.0) == {}
    assert "no word from weather for 40.00 s" in told(tmp_path / "b", waits, quiet_s=40.0)["peers"]
    host = told(tmp_path / "c", waits, quiet_s=40.0, party="weather")
    assert "no word from airline" in host["peers"]
    restart = {"t": 9.0, "event": "restart", "message": "weather began anew"}
    assert set(told(tmp_path / "d", [*busy(0.3, 0.6, 0.6), restart], quiet_s=40.0)) == {"peers"}


def test_a_run_that_writes_nothing_may_be_gone(tmp_path: Path) -> None:
    happened = busy(0.3, 0.6, 0.6)
    assert told(tmp_path / "a", happened, quiet_s=29.0) == {}
    found = told(tmp_path / "b", happened, quiet_s=31.0)
    assert set(found) == {"silence"}
    assert "nothing was recorded for 31.00 s, where a report comes every 500 ms" in found["silence"]
    folder = write_run(tmp_path / "c", happened)
    (folder / "checkpoints" / "round-20").mkdir(parents=True)
    kept = warnings(RunStatus.of(RunRecord(folder), 31.0))
    assert "from round 20" in kept[0].change


def test_slow_rounds_are_no_silence(tmp_path: Path) -> None:
    slow = [{**event, "t": 10.0 * event["t"]} for event in busy(0.3, 0.6, 0.6)]
    assert told(tmp_path / "a", slow, quiet_s=45.0) == {}
    assert set(told(tmp_path / "b", slow, quiet_s=55.0)) == {"silence"}


def test_a_run_that_failed_says_how_first(tmp_path: Path) -> None:
    ended = {"status": "PeerLost", "message": "weather: the link is gone"}
    found = told(tmp_path, busy(0.9, 0.1, 0.1), quiet_s=99.0, summary=ended)
    assert next(iter(found)) == "end" and "PeerLost: weather: the link is gone" in found["end"]
    assert not set(found) & {"silence", "peers"}


def test_a_record_of_an_older_release_is_judged_by_what_it_has(tmp_path: Path) -> None:
    lean = [
        {k: v for k, v in event.items() if k not in ("spans", "similarity_quantiles", "waited_s")}
        for event in events()
    ]
    assert told(tmp_path, lean, job={"method": {}}) == {}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_no_rule_minds_a_run_that_has_not_begun(tmp_path: Path, rule: Any) -> None:
    record = RunRecord(write_run(tmp_path / "run", BEGIN[:1]))
    assert list(rule(RunStatus.of(record))) == []
