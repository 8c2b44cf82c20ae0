"""The end of `celu demo`: the trained model is served, and one request is answered."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from celu.cli import demo
from celu.cli.console import Console
from celu.testing import make_keys
from cli.pair import DEADLINE_S, pair_at


def test_the_demo_ends_with_a_prediction_of_both_parties(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_keys(tmp_path / "keys", ["airline", "weather"])
    pair = pair_at(tmp_path, tmp_path / "keys")
    for end in pair.run():
        assert end.code == 0, end.err
    for name in ("airline", "weather"):
        (tmp_path / name / "run").rename(tmp_path / name / "auto")
    monkeypatch.setattr(demo, "READY_S", DEADLINE_S)
    demo._predict(tmp_path, Console())
    text = " ".join(capsys.readouterr().out.split())
    assert re.search(r"be late\? \d+%, answered in \d+ ms over the slow link; it was", text), text
