"""The dashboard of a real run of two parties, in a real browser, while they train."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from browser import browser
from celu.record.run import RunRecord
from cli.pair import Pair, celu, ended, pair_at
from processes import CeluProcess
from record.folders import write_run

DEADLINE_S = 600.0
ROUNDS = (
    "Number(document.querySelector('#numbers tbody tr:nth-child(3) td').textContent.split(' ')[0])"
)
FIGURES = """[...document.querySelectorAll("figure")].map((figure) => [
  figure.querySelector("h3").textContent, figure.querySelector("figcaption").textContent])"""


@pytest.fixture
def pair(tmp_path: Path, keys: Path) -> Pair:
    return pair_at(tmp_path, keys)


def wait_for_output(process: CeluProcess, pattern: str) -> re.Match[str]:
    """The first line of a process's output that matches a pattern."""
    assert process.stdout is not None
    until = time.monotonic() + DEADLINE_S
    lines: list[str] = []
    while time.monotonic() < until and (line := process.stdout.readline()):
        lines.append(line)
        if found := re.search(pattern, line):
            return found
    raise AssertionError(f"{pattern} is not in {lines}")


@contextmanager
def dashboard(*arguments: str | Path) -> Iterator[tuple[CeluProcess, str]]:
    process = CeluProcess(["dashboard", *arguments])
    try:
        yield process, wait_for_output(process, r"(http://\S+/)")[1]
    finally:
        process.kill()
        process.communicate(timeout=DEADLINE_S)


def test_a_run_is_shown_while_it_trains_until_it_is_done(pair: Pair) -> None:
    pair.edit("job.toml", "rounds = 60", "rounds = 150")
    link = ("--link", "wan-300")
    with browser() as tabs:
        tab = tabs()
        tab.set_viewport(1280)
        guest = pair.start("airline", *link, "--dashboard")
        url = wait_for_output(guest, r"dashboard at (http://127\.0\.0\.1:\d+/)")[1]
        tab.open(url)
        tab.wait_for(
            "document.querySelector('#numbers td') !== null"
        )  # before any peer has connected
        host = pair.start("weather", *link)
        tab.wait_for("document.querySelectorAll('canvas').length >= 6")
        tab.wait_for("document.querySelectorAll('#time rect[y]').length > 10")
        tab.wait_for("document.querySelectorAll('#batches td').length > 5")
        before, at = tab.evaluate(FIGURES), tab.evaluate(ROUNDS)
        assert 0 < at < 150
        titles = dict(before)
        for title in ("Held-out AUC", "Training loss", "Sent in training, Mbps"):
            assert titles[title], title
        tab.wait_for(f"{ROUNDS} > {at + 20}")
        # Similarities may stay at 1; everything else changes while the run goes on.
        changing = {t: text for t, text in titles.items() if not t.startswith("Cosine similarity")}
        tab.wait_for(f"{FIGURES}.every(([t, text]) => text !== ({json.dumps(changing)})[t])")
        tab.evaluate("document.getElementById('live').click()")  # pauses the page
        paused_at = tab.evaluate(ROUNDS)
        guest_ended, host_ended = ended(guest), ended(host)
        assert guest_ended.code == 0, guest_ended.err
        assert host_ended.code == 0, host_ended.err
        connection = "document.getElementById('connection').textContent"
        tab.wait_for(f"{connection}.includes('has stopped')")
        assert tab.evaluate(ROUNDS) == paused_at
        tab.evaluate("document.getElementById('live').click()")
        tab.wait_for(f"{ROUNDS} === 150")
        assert "done" in tab.evaluate("document.getElementById('numbers').innerText")
        assert tab.errors == [] and all(asked.startswith(url) for asked in tab.requests)
    # The dashboard does not change what the run records.
    record = RunRecord(pair.folder / "airline" / "run")
    assert record.status == "done" and record.rounds[-1].round == 150


def test_a_dashboard_of_several_runs_ends_on_ctrl_c(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / name, summary={"status": "done"}) for name in ("a", "b")]
    with dashboard(*folders) as (process, url), browser() as tabs:
        tab = tabs()
        tab.open(url)
        tab.wait_for("document.querySelectorAll('#legend label').length === 2")
        tab.wait_for("document.querySelectorAll('canvas').length === 6")
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 0
        tab.wait_for("document.getElementById('connection').textContent.includes('has stopped')")
        assert tab.errors == []


def test_a_run_continues_without_a_dashboard_if_the_port_is_in_use_and_is_tracked(
    pair: Pair,
) -> None:
    pair.edit(
        "airline/party.toml", "connect_s = 600", 'connect_s = 600\ntracking = ["tensorboard"]'
    )
    with dashboard(write_run(pair.folder / "other")) as (_, url):
        port = url.rsplit(":", 1)[1].strip("/")
        guest = pair.start("airline", "--dashboard", "--dashboard-port", port)
        host = pair.start("weather")
        done = ended(guest)
        assert done.code == 0 and ended(host).code == 0, done.err
        assert "no dashboard: --host, --port: cannot listen at" in " ".join(done.out.split())
        run = pair.folder / "airline" / "run"
        assert len(list((run / "tensorboard").glob("events.out.tfevents.*"))) == 1


def test_a_folder_or_host_that_cannot_be_served_exits_with_code_3(tmp_path: Path) -> None:
    result = celu("dashboard", tmp_path)
    assert result.returncode == 3
    assert "not a run folder, events.jsonl cannot be read" in " ".join(result.stderr.split())
    run = write_run(tmp_path / "run")
    result = celu("dashboard", run, "--host", "0.0.0.0")
    assert result.returncode == 3 and "there is no login" in " ".join(result.stderr.split())


def test_exposing_a_run_prints_a_warning(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    process = CeluProcess(["dashboard", run, "--host", "0.0.0.0", "--expose"])
    try:
        wait_for_output(process, r"--expose: anyone who can reach this address can see these runs")
        wait_for_output(process, r"http://0\.0\.0\.0:\d+/")
    finally:
        process.kill()
        process.communicate(timeout=DEADLINE_S)
