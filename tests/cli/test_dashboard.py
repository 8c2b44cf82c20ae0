"""The dashboard of a real run of two parties, in a real browser, while they train."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from browser import browser
from celu.record.run import RunRecord
from cli.pair import Pair, celu, ended, pair_at
from record.folders import write_run

DEADLINE_S = 60.0
ROUNDS = (
    "Number(document.querySelector('#figures tbody tr:nth-child(3) td').textContent.split(' ')[0])"
)
FIGURES = """[...document.querySelectorAll("figure")].map((figure) => [
  figure.querySelector("h3").textContent, figure.querySelector("figcaption").textContent])"""

# Tests that a shell runs in the background ignore Ctrl-C, and would pass that on.
INTERRUPTIBLE = """import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from celu.cli.app import main
main()"""


@pytest.fixture
def pair(tmp_path: Path, keys: Path) -> Pair:
    return pair_at(tmp_path, keys)


def said(process: subprocess.Popen[str], pattern: str) -> re.Match[str]:
    """The first line of a process that holds a pattern."""
    assert process.stdout is not None
    until = time.monotonic() + DEADLINE_S
    lines: list[str] = []
    while time.monotonic() < until and (line := process.stdout.readline()):
        lines.append(line)
        if found := re.search(pattern, line):
            return found
    raise AssertionError(f"{pattern} is not in {lines}")


@contextmanager
def dashboard(*arguments: str | Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-c", INTERRUPTIBLE, "dashboard", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process, said(process, r"(http://\S+/)")[1]
    finally:
        process.kill()
        process.communicate(timeout=DEADLINE_S)


def test_a_run_is_shown_while_it_trains_until_it_is_done(pair: Pair) -> None:
    pair.edit("job.toml", "rounds = 60", "rounds = 150")
    line = ("--link", "wan-300")
    with browser() as tabs:
        tab = tabs()
        tab.look(1280)
        guest = pair.start("airline", *line, "--dashboard")
        url = said(guest, r"dashboard at (http://127\.0\.0\.1:\d+/)")[1]
        tab.open(url)
        tab.wait_for("document.querySelector('#figures td') !== null")  # before any peer has come
        host = pair.start("weather", *line)
        tab.wait_for("document.querySelectorAll('canvas').length >= 6")
        tab.wait_for("document.querySelectorAll('#time rect[y]').length > 10")
        tab.wait_for("document.querySelectorAll('#batches td').length > 5")
        before, at = tab.evaluate(FIGURES), tab.evaluate(ROUNDS)
        assert 0 < at < 150
        titles = dict(before)
        for title in ("Held-out AUC", "Training loss", "Sent in training, Mbps"):
            assert titles[title], title
        tab.wait_for(f"{ROUNDS} > {at + 20}")
        after = dict(tab.evaluate(FIGURES))
        still = {title for title in titles if after[title] == titles[title]}
        # Similarities may have come to rest at 1; everything else moves.
        assert all(title.startswith("Cosine similarity") for title in still), still
        tab.evaluate("document.getElementById('follow').click()")  # stands still
        held = tab.evaluate(ROUNDS)
        guest_ended, host_ended = ended(guest), ended(host)
        assert guest_ended.code == 0, guest_ended.err
        assert host_ended.code == 0, host_ended.err
        connection = "document.getElementById('connection').textContent"
        tab.wait_for(f"{connection}.includes('has ended')")
        assert tab.evaluate(ROUNDS) == held
        tab.evaluate("document.getElementById('follow').click()")
        tab.wait_for(f"{ROUNDS} === 150")
        assert "done" in tab.evaluate("document.getElementById('figures').innerText")
        assert tab.errors == [] and all(asked.startswith(url) for asked in tab.requests)
    # The run's own record is that of any run.
    record = RunRecord(pair.folder / "airline" / "run")
    assert record.status == "done" and record.rounds[-1].round == 150


def test_folders_of_several_runs_are_shown_until_it_is_interrupted(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / name, summary={"status": "done"}) for name in ("a", "b")]
    with dashboard(*folders) as (process, url), browser() as tabs:
        tab = tabs()
        tab.open(url)
        tab.wait_for("document.querySelectorAll('#legend label').length === 2")
        tab.wait_for("document.querySelectorAll('canvas').length === 6")
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 0
        tab.wait_for("document.getElementById('connection').textContent.includes('has ended')")
        assert tab.errors == []


def test_a_dashboard_that_cannot_be_had_ends_no_run_and_a_tracker_stands_beside_it(
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
        assert "there is no dashboard: --host, --port: expected" in " ".join(done.out.split())
        run = pair.folder / "airline" / "run"
        assert len(list((run / "tensorboard").glob("events.out.tfevents.*"))) == 1


def test_what_cannot_be_served_is_refused_with_code_3(tmp_path: Path) -> None:
    told = celu("dashboard", tmp_path)
    assert told.returncode == 3
    assert "expected a run folder with events.jsonl" in " ".join(told.stderr.split())
    run = write_run(tmp_path / "run")
    told = celu("dashboard", run, "--host", "0.0.0.0")
    assert told.returncode == 3 and "there is no login" in " ".join(told.stderr.split())


def test_who_exposes_a_run_is_warned(tmp_path: Path) -> None:
    arguments = ("--host", "0.0.0.0", "--expose")
    command = [sys.executable, "-m", "celu.cli.app", "dashboard", str(write_run(tmp_path / "run"))]
    process = subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        said(process, r"--expose: whoever can reach this address sees these runs")
        said(process, r"http://0\.0\.0\.0:\d+/")
    finally:
        process.kill()
        process.communicate(timeout=DEADLINE_S)
