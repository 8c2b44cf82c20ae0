"""Two processes continue a finished run, and start a new one from its weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from celu.testing import read_events
from cli.pair import Pair, celu, ended, pair_at

NAMES = ("airline", "weather")


def run(pair: Pair, *more: str, host: tuple[str, ...] | None = None) -> list[tuple[int, str]]:
    started = [
        pair.start("airline", *more),
        pair.start("weather", *(more if host is None else host)),
    ]
    ends = [ended(process) for process in started]
    return [(end.code, end.out + end.err) for end in ends]


def weights(pair: Pair, run_dir: str = "run") -> list[dict[str, torch.Tensor]]:
    return [load_file(pair.folder / name / run_dir / "weights.safetensors") for name in NAMES]


@pytest.fixture
def pair(tmp_path: Path, keys: Path) -> Pair:
    return pair_at(tmp_path / "pair", keys)


def test_a_finished_run_continues_and_has_the_weights_of_a_longer_one(
    pair: Pair, tmp_path: Path, keys: Path
) -> None:
    assert [code for code, _ in run(pair)] == [0, 0]
    refused = run(pair, "--more", "20", host=())
    assert all(code != 0 for code, _ in refused)
    assert all("total_rounds" in text and "Pass the same --more" in text for _, text in refused)
    for code, text in run(pair, "--more", "20"):
        assert code == 0, text
    longer = pair_at(tmp_path / "longer", keys)
    longer.edit("job.toml", "rounds = 60", "rounds = 80")
    assert [code for code, _ in run(longer)] == [0, 0]
    for ours, theirs in zip(weights(pair), weights(longer), strict=True):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    again = run(pair)  # the folder knows the new length
    assert [code for code, _ in again] == [0, 0]
    summary = json.loads((pair.folder / "airline" / "run" / "summary.json").read_text())
    assert summary["rounds"] == 80


def test_a_new_run_starts_from_the_weights_of_an_earlier_one(pair: Pair) -> None:
    assert [code for code, _ in run(pair)] == [0, 0]
    before = read_events(pair.folder / "airline" / "run")
    for name in NAMES:
        shutil.move(pair.folder / name / "run", pair.folder / name / "last-week")
        path = pair.folder / name / "party.toml"
        path.write_text('start = "last-week"\n' + path.read_text())
    pair.edit("job.toml", "every = 20", "every = 1")
    for code, text in run(pair):
        assert code == 0, text
    after = read_events(pair.folder / "airline" / "run")
    first = next(e["loss"] for e in after if e["event"] == "evaluation")
    last = [e["loss"] for e in before if e["event"] == "evaluation"][-1]
    assert abs(first - last) < 0.1, "one round after the end of the earlier run"
    checked = celu(
        "check", pair.folder / "airline" / "party.toml", "--job", pair.folder / "job.toml"
    )
    assert "start: " in checked.stdout and "the weights of model" in checked.stdout
    path = pair.folder / "weather" / "party.toml"
    path.write_text(path.read_text().replace('start = "last-week"\n', ""))
    for name in NAMES:
        shutil.rmtree(pair.folder / name / "run")
    for code, text in run(pair):
        assert code != 0 and "start_model" in text and "parts of one model" in text
