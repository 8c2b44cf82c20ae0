"""What a run prints: while it waits, while it trains, and at its end."""

from __future__ import annotations

import io
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import celu
from celu.cli.app import app
from celu.cli.console import Console
from celu.cli.counting import CountProgress
from celu.cli.inspect import _show_columns
from celu.cli.progress import RunProgress, summary_table
from celu.data.gate import check_store
from celu.events import DataOpened, Event, RoundDone, TrainingStarted
from celu.run_folder import RunFolder
from cli.pair import pair_at
from federation import federation
from stores import write_store


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")


def round_done(number: int) -> RoundDone:
    return RoundDone(round=number, seconds=0.5 * number, t=9.0, bytes_sent=10**6)


OPENED = DataOpened(schema_digest="x", train_rows=1024, test_rows=128)


def bar_of(progress: RunProgress | CountProgress) -> str:
    """The bar as text, on a wide terminal."""
    out = io.StringIO()
    Console(file=out).print(progress._bar.get_renderable(), width=200)
    return out.getvalue()


def test_the_bar_of_a_party_that_waits_says_for_whom_and_not_how_long_is_left() -> None:
    progress = RunProgress(Console(file=Terminal()), "weather", "airline at there:7443")
    progress.event(OPENED)
    waiting = bar_of(progress)
    assert "waiting for airline at there:7443" in waiting
    assert "left" not in waiting and "0/?" not in waiting
    progress.event(TrainingStarted(num_rounds=40))
    progress.event(round_done(10))
    training = bar_of(progress)
    assert "10/40" in training and "left" in training and "waiting" not in training


def test_a_host_without_a_terminal_says_that_it_waits_and_prints_every_tenth_of_its_rounds() -> (
    None
):
    out = io.StringIO()
    progress = RunProgress(
        Console(file=out), "weather", "airline at there:7443, up to 300 s", evaluates=False
    )
    events: list[Event] = [OPENED, TrainingStarted(num_rounds=40), *map(round_done, range(1, 41))]
    for event in events:
        progress.event(event)
    lines = out.getvalue().splitlines()
    assert lines[:2] == [
        "weather: 1,024 rows to train on; waiting for airline at there:7443, up to 300 s",
        "weather: connected; training for 40 rounds",
    ]
    assert lines[2] == "weather: round 4 of 40, 1.0 MB, t 9.0 s"
    assert len(lines) == 12 and lines[-1].startswith("weather: round 40 of 40")


def test_a_guest_without_a_terminal_prints_evaluations_and_not_rounds() -> None:
    out = io.StringIO()
    progress = RunProgress(Console(file=out), "airline", "weather")
    for event in (TrainingStarted(num_rounds=10), *map(round_done, range(1, 11))):
        progress.event(event)
    assert out.getvalue().splitlines() == ["airline: connected; training for 10 rounds"]


def test_the_summary_has_the_evaluations_and_says_which_time_is_which() -> None:
    fed = federation(evaluation={"every": 5, "metric": "auc"})
    progress = RunProgress(Console(file=io.StringIO()), "all parties")
    result = celu.simulate(fed.job, fed.guest, fed.hosts, callbacks=[progress.event])
    assert progress.training_s is not None
    assert progress.training_s >= result.evaluations[-1]["seconds"] > 0
    best = max(result.evaluations, key=lambda e: e["auc"])
    out = io.StringIO()
    Console(file=out).print(summary_table("simulation", result, 12.8, 3.4), width=120)
    assert f"{len(result.evaluations)}, the best auc {best['auc']:.4f} after" in out.getvalue()
    assert "training time" in out.getvalue() and "3.4 s, as in the report" in out.getvalue()
    assert "12.8 s, all of this command" in out.getvalue()


@pytest.mark.parametrize("unit", ["ids", "rows"])
def test_the_bar_of_what_is_counted_says_nothing_of_time_before_it_starts(unit: str) -> None:
    bar = CountProgress(Console(file=Terminal()), "weather", unit, "airline at there:7443")
    waiting = bar_of(bar)
    assert "waiting for airline at there:7443" in waiting
    assert "left" not in waiting and "0/?" not in waiting and unit not in waiting
    bar.show(250, 1000)
    counting = bar_of(bar)
    assert "250/1000" in counting and f" {unit} " in counting and "left" in counting
    assert "waiting" not in counting


def test_without_a_terminal_what_is_counted_is_printed_in_tenths_after_whom_it_waits_for() -> None:
    out = io.StringIO()
    with CountProgress(Console(file=out), "weather", "ids", "airline, up to 300 s") as bar:
        for done in range(0, 1001, 50):
            bar.show(done, 1000)
    lines = out.getvalue().splitlines()
    assert lines[:2] == [
        "weather: waiting for airline, up to 300 s",
        "weather: 100 of 1,000 ids",
    ]
    assert len(lines) == 11


LONG = "average_spending_of_the_last_twelve_months"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    numbers = np.linspace(-1e6, 1e6, 64).astype(np.float32)
    codes = (np.arange(64) % 5).astype(np.int32)
    columns = {LONG: numbers, f"{LONG}_city": codes, "label": (codes > 2).astype(np.float32)}
    return write_store(tmp_path / "store", columns, {f"{LONG}_city": 9}).path


def test_inspect_shows_whole_names_of_columns_on_a_terminal_of_80_columns(store: Path) -> None:
    from celu.data.store import open_store

    out = Terminal()
    opened = open_store(store)
    _show_columns(Console(file=out), opened, check_store(opened))
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue()).splitlines()]
    assert lines[lines.index(LONG) + 1].startswith("number, min -1e+06, max 1e+06, mean ")
    assert "8 buckets, min 0, max 4, " in lines[lines.index(f"{LONG}_city") + 1]


def test_inspect_writes_whole_names_and_one_table_to_a_file(store: Path) -> None:
    text = CliRunner().invoke(app, ["inspect", str(store)]).output
    assert f" {LONG} " in text and f" {LONG}_city " in text
    assert text.count("training rows") == 1


def test_the_time_in_total_starts_before_the_time_of_an_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow_folder(*arguments: Any) -> RunFolder:
        folder = RunFolder(*arguments)
        time.sleep(0.3)  # as importing torch takes, with which a command goes on
        return folder

    monkeypatch.setattr("celu.cli.simulate.RunFolder", slow_folder)
    pair = pair_at(tmp_path / "pair", tmp_path / "keys")
    parties = [str(pair.folder / name / "party.toml") for name in ("airline", "weather")]
    options = ["--job", str(pair.folder / "job.toml"), "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(app, ["simulate", *parties, *options], catch_exceptions=False)
    times = [float(t) for t in re.findall(r"round 60 .* t ([\d.]+) s", done.output)]
    (total,) = re.findall(r"time in total\W+([\d.]+) s, all of this command", done.output)
    assert times and float(total) >= max(times)
