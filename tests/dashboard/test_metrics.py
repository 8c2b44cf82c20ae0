"""Metrics in the Prometheus text format."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from celu.dashboard.live import LiveRun, open_runs
from celu.dashboard.metrics import metrics_text
from record.folders import events, write_run

# A line of the text format: a comment, or a name, labels and a value.
_VALUE = r'"(?:[^"\\\n]|\\\\|\\"|\\n)*"'
_LINE = re.compile(
    rf"# (HELP|TYPE) celu_\w+ .+|celu_\w+\{{\w+={_VALUE}(,\w+={_VALUE})*\}} -?[\d.]+(e[+-]?\d+)?"
)


def text_of(tmp_path: Path, written: list[dict[str, Any]] | None = None, **more: Any) -> str:
    text = metrics_text(open_runs([write_run(tmp_path / "run", written, **more)]))
    assert text.endswith("\n")
    for line in text.splitlines():
        assert _LINE.fullmatch(line), line
    return text


def test_a_run_is_exported_as_gauges(tmp_path: Path) -> None:
    text = text_of(tmp_path)
    labels = 'run="run · airline",party="airline"'
    for name, value in {
        "running": 1.0,
        "round": 40.0,
        "rounds": 40.0,
        "training_seconds": 20.0,
        "waited_seconds": 8.0,
        "sent_bytes": 40_000.0,
        "received_bytes": 40_000.0,
        "local_steps": 80.0,
    }.items():
        assert f"celu_{name}{{{labels}}} {value}" in text.splitlines()
    assert f'celu_link_up{{{labels},peer="weather"}} 1.0' in text
    assert f'celu_metric{{{labels},name="auc"}} 0.7' in text
    assert text.count("# TYPE celu_round gauge") == 1


def test_a_link_that_is_down_reads_zero(tmp_path: Path) -> None:
    down = {"t": 90.0, "event": "link_down", "peer": "weather", "reason": "gone"}
    assert re.search(r'celu_link_up\{.*peer="weather"\} 0\.0', text_of(tmp_path, [*events(), down]))


def test_before_the_first_round_few_metrics_exist(tmp_path: Path) -> None:
    samples = [line for line in text_of(tmp_path, events(1)[:1]).splitlines() if line[0] != "#"]
    assert [line[: line.index("{")] for line in samples] == ["celu_running", "celu_link_up"]


def test_special_characters_in_labels_are_escaped(tmp_path: Path) -> None:
    record = open_runs([write_run(tmp_path / "run")])[0].record
    text = metrics_text([LiveRun(record, 'a"} 1\\\nceles 2')])
    assert 'run="a\\"} 1\\\\\\nceles 2",party="airline"' in text
    for line in text.splitlines():
        assert _LINE.fullmatch(line), line
