"""`celu report` on real runs: two processes over TLS, and a simulation of all parties."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from browser import browser
from celu.record.run import RunRecord
from cli.pair import Pair, celu, pair_at


@pytest.fixture
def pair(tmp_path: Path, keys: Path) -> Pair:
    return pair_at(tmp_path, keys)


def data_of(page: Path) -> dict[str, Any]:
    text = page.read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def kinds(window: dict[str, Any]) -> set[str]:
    return {what for what, _, _ in window["spans"]}


def test_a_real_run_of_two_parties_is_reported_on_one_clock(pair: Pair, tmp_path: Path) -> None:
    pair.edit("job.toml", "seed = 1", 'seed = 1\ncodec = "int8"')
    link = ("--link", "wan-300")
    guest, host = pair.start("airline", *link), pair.start("weather", *link)
    for party in (guest, host):
        out, err = party.communicate(timeout=600)
        assert party.returncode == 0, out + err
    folders = [pair.folder / name / "run" for name in ("airline", "weather")]
    out = tmp_path / "report.html"
    result = celu("report", *folders, "--out", out)
    assert result.returncode == 0 and "2 run(s)" in result.stdout, result.stderr
    data = data_of(out)
    assert [run["label"] for run in data["runs"]] == ["airline/run", "weather/run"]
    assert [run["summary"]["status"] for run in data["runs"]] == ["done", "done"]
    here, there = data["windows"]["middle"]
    assert kinds(here) >= {"compute", "encode", "wait", "send", "receive"}
    assert kinds(there) >= {"compute", "encode", "wait", "send", "receive"}
    # On one clock, the host's message arrives 20 ms after it was sent.
    sent = [b for what, _, b in there["spans"] if what == "send"]
    received = [b for what, _, b in here["spans"] if what == "receive"]
    assert min(min(abs(r - s - 0.02) for s in sent) for r in received) < 0.02
    # The host's folder holds nothing derived from labels, so neither does its part of the report.
    assert data["runs"][1]["held_out"] == {} and data["runs"][1]["loss"]["y"] == []
    with browser() as tabs:
        tab = tabs()
        tab.open(out.as_uri())
        assert tab.evaluate("document.querySelectorAll('canvas').length") >= 5
        assert tab.evaluate("document.querySelectorAll('#time rect[y]').length") > 10
        assert tab.errors == [] and tab.requests == [out.as_uri()]


def test_a_simulation_leaves_a_folder_for_each_party(pair: Pair, tmp_path: Path) -> None:
    parties = [pair.folder / name / "party.toml" for name in ("airline", "weather")]
    out, job = tmp_path / "simulation", pair.folder / "job.toml"
    ran = celu("simulate", *parties, "--job", job, "--out", out, "--link", "wan-100")
    assert ran.returncode == 0, ran.stderr
    guest, host = RunRecord(out), RunRecord(out / "hosts" / "weather")
    assert (guest.name, guest.role, host.name, host.role) == ("airline", "guest", "weather", "host")
    assert guest.run_id == host.run_id is not None
    assert guest.status == host.status == "done"
    assert len(guest.rounds) == len(host.rounds) == 60
    assert "loss" not in (out / "hosts" / "weather" / "events.jsonl").read_text()
    line = next(line for line in ran.stdout.splitlines() if "celu report" in line)
    report = tmp_path / "page.html"
    result = celu(*line.split()[1:], "--out", report)
    assert result.returncode == 0, result.stderr
    here, there = data_of(report)["windows"]["end"]
    assert (here["first"], here["last"]) == (there["first"], there["last"])
    assert data_of(report)["runs"][0]["summary"]["virtual_time"] is True


def test_a_folder_without_a_run_exits_with_code_3(tmp_path: Path) -> None:
    result = celu("report", tmp_path)
    assert result.returncode == 3
    assert "not a run folder, events.jsonl cannot be read" in " ".join(result.stderr.split())
    assert celu("report").returncode == 2
