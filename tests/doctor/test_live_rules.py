"""Warnings about runs, from hand-written records: each appears if it applies, and only then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from celu.doctor.live_rules import RULES, RunStatus, warnings
from celu.record.run import RunRecord
from record.folders import JOB, events, round_event, write_run

Event = dict[str, Any]
START: list[Event] = [
    {"t": 0.0, "event": "attempt", "number": 1},
    {"t": 0.9, "event": "connected", "peers": ["weather"], "secure": True},
    {"t": 1.0, "event": "started", "num_rounds": 40},
]


def advice(
    folder: Path, happened: list[Event] | None = None, *, quiet_s: float = 0.0, **more: Any
) -> dict[str, str]:
    """Message and fix of each warning, by topic."""
    record = RunRecord(write_run(folder / "run", happened, **more))
    found = warnings(RunStatus.from_record(record, quiet_s))
    assert all(f.message and f.fix for f in found)
    for finding in found:  # advice on speed is no warning: nothing is wrong with the run
        assert finding.level == ("hint" if finding.topic in ("computing", "link") else "warn")
    return {f.topic: f"{f.message} -> {f.fix}" for f in found}


def busy(wait: float, send: float, receive: float, count: int = 30, **more: Any) -> list[Event]:
    """Rounds of half a second, with these shares of the time."""
    happened = list(START)
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


def test_a_healthy_run_has_no_warnings(tmp_path: Path) -> None:
    assert advice(tmp_path, busy(0.3, 0.6, 0.6)) == {}


def test_a_finished_run_has_no_warnings_about_silence_or_links(tmp_path: Path) -> None:
    down = {"t": 20.0, "event": "link_down", "peer": "weather", "reason": "gone"}
    happened = [*busy(0.3, 0.6, 0.6), down]
    assert advice(tmp_path, happened, quiet_s=1e6, summary={"status": "done"}) == {}


def test_idle_computation_is_advised_to_do_more_local_steps(tmp_path: Path) -> None:
    found = advice(tmp_path, busy(0.6, 0.5, 0.5))
    assert set(found) == {"computing"}
    assert "idle 60% of the time" in found["computing"] and "R = 3 here" in found["computing"]
    assert "codec" not in found["computing"]


def test_with_a_full_link_fewer_bytes_are_advised(tmp_path: Path) -> None:
    assert 'codec = "int8"' in advice(tmp_path, busy(0.6, 0.1, 0.9))["computing"]


def test_with_auto_no_change_of_the_method_is_advised(tmp_path: Path) -> None:
    job = {"method": {**JOB["method"], "auto": True}}
    found = advice(tmp_path, busy(0.6, 0.1, 0.1), job=job)
    assert set(found) == {"computing", "link"}
    assert "job.toml" not in found["computing"] + found["link"]


def test_an_idle_link_while_a_party_waits_needs_more_rounds_in_flight(tmp_path: Path) -> None:
    found = advice(tmp_path, busy(0.6, 0.1, 0.2))["link"]
    assert "in use 10% of the time to send, 20% to receive" in found and "depth = 2" in found


def test_the_advised_depth_starts_from_the_chosen_one(tmp_path: Path) -> None:
    choice = {"t": 2.0, "event": "choice", "round": 0, "until": 40, "seconds": 0.0, "depth": 4}
    happened = [*START, {**choice, "reason": "as written"}, *busy(0.6, 0.1, 0.2)[3:]]
    assert "depth = 8" in advice(tmp_path, happened)["link"]


def test_an_idle_link_of_a_busy_party_is_not_the_limit(tmp_path: Path) -> None:
    found = advice(tmp_path, busy(0.1, 0.1, 0.2))
    assert set(found) == {"link"} and "computation limits the rounds" in found["link"]


def test_the_first_rounds_are_not_judged(tmp_path: Path) -> None:
    assert advice(tmp_path, busy(0.9, 0.0, 0.0, count=8)) == {}


def test_cached_batches_of_mostly_zero_weight_get_a_warning(tmp_path: Path) -> None:
    low = {"similarity_quantiles": [-0.5, 0.1, 0.2, 0.3, 0.6, 1.0]}
    found = advice(tmp_path / "a", busy(0.3, 0.6, 0.6, **low))
    assert set(found) == {"similarity"} and "0.30, below cos(xi) = 0.50" in found["similarity"]
    wide = {"method": {**JOB["method"], "xi": {"guest": 85, "host": 60}}}
    assert advice(tmp_path / "b", busy(0.3, 0.6, 0.6, **low), job=wide) == {}
    none = {"method": {**JOB["method"], "weighting": "none"}}
    assert advice(tmp_path / "c", busy(0.3, 0.6, 0.6, **low), job=none) == {}


def test_a_link_that_is_down_gets_a_warning_until_it_is_up(tmp_path: Path) -> None:
    down = {"t": 20.0, "event": "link_down", "peer": "weather", "reason": "silent for 20 s"}
    happened = [*busy(0.3, 0.6, 0.6), down]
    found = advice(tmp_path / "a", happened, quiet_s=90.0)
    assert set(found) == {"link to weather"}  # no silence: the reason is known
    assert "down for 90.00 s: silent for 20 s" in found["link to weather"]
    assert "10.0 min (outage_s)" in found["link to weather"]
    up = {"t": 21.0, "event": "link_up", "peer": "weather", "seconds": 1.0}
    assert advice(tmp_path / "b", [*happened, up]) == {}
    again = {"t": 30.0, "event": "attempt", "number": 2}
    assert advice(tmp_path / "c", [*happened, again]) == {}


def test_peers_that_do_not_connect_are_named(tmp_path: Path) -> None:
    waits = START[:1]
    assert advice(tmp_path / "a", waits, quiet_s=5.0) == {}
    assert (
        "weather not connected for 40.00 s" in advice(tmp_path / "b", waits, quiet_s=40.0)["peers"]
    )
    host = advice(tmp_path / "c", waits, quiet_s=40.0, party="weather")
    assert "airline not connected" in host["peers"]
    restart = {"t": 9.0, "event": "restart", "message": "weather restarted"}
    assert set(advice(tmp_path / "d", [*busy(0.3, 0.6, 0.6), restart], quiet_s=40.0)) == {"peers"}


def test_a_run_without_events_may_have_died(tmp_path: Path) -> None:
    happened = busy(0.3, 0.6, 0.6)
    assert advice(tmp_path / "a", happened, quiet_s=29.0) == {}
    found = advice(tmp_path / "b", happened, quiet_s=31.0)
    assert set(found) == {"silence"}
    assert "no event for 31.00 s; usually there is one every 500 ms" in found["silence"]
    folder = write_run(tmp_path / "c", happened)
    (folder / "checkpoints" / "round-20").mkdir(parents=True)
    found_again = warnings(RunStatus.from_record(RunRecord(folder), 31.0))
    assert "from round 20" in found_again[0].fix


def test_slow_rounds_are_not_a_silence(tmp_path: Path) -> None:
    slow = [{**event, "t": 10.0 * event["t"]} for event in busy(0.3, 0.6, 0.6)]
    assert advice(tmp_path / "a", slow, quiet_s=45.0) == {}
    assert set(advice(tmp_path / "b", slow, quiet_s=55.0)) == {"silence"}


def test_the_first_warning_of_a_failed_run_is_its_error(tmp_path: Path) -> None:
    ended = {"status": "PeerLost", "message": "weather: the link is gone"}
    found = advice(tmp_path, busy(0.9, 0.1, 0.1), quiet_s=99.0, summary=ended)
    assert next(iter(found)) == "end" and "PeerLost: weather: the link is gone" in found["end"]
    assert not set(found) & {"silence", "peers"}


def test_a_record_of_an_older_release_is_accepted(tmp_path: Path) -> None:
    lean = [
        {k: v for k, v in event.items() if k not in ("spans", "similarity_quantiles", "waited_s")}
        for event in events()
    ]
    assert advice(tmp_path, lean, job={"method": {}}) == {}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_no_rule_fails_for_a_run_that_has_not_started(tmp_path: Path, rule: Any) -> None:
    record = RunRecord(write_run(tmp_path / "run", START[:1]))
    assert list(rule(RunStatus.from_record(record))) == []
