"""`celu baseline`: the guest alone under the same contract, and what federation adds."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import celu
from celu.cli.app import app
from celu.config.party import read_party
from celu.errors import CheckpointError, ConfigError, ModelError
from celu.launch.loading import load_party
from celu.model_identity import weights_of
from celu.page.assemble import replace_non_finite
from celu.record.folders import read_runs
from celu.report.comparison import differences
from celu.report.content import content
from celu.scores.file import read_scores
from celu.serving.export import read_trained
from celu.testing import read_events
from celu.tracking import tracker
from cli.pair import pair_at


def invoke(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return re.sub(r"\x1b\[[0-9;]*m", "", result.output)


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    pair_at(tmp_path, tmp_path / "keys")
    edit(tmp_path / "job.toml", "rounds = 60", "rounds = 40")
    return tmp_path


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text, text
    path.write_text(text.replace(old, new))


def simulate(pair: Path) -> Path:
    parties = [pair / name / "party.toml" for name in ("airline", "weather")]
    invoke("simulate", *parties, "--job", pair / "job.toml", "--out", pair / "run")
    return pair / "run"


def baseline(pair: Path, *options: str, party: str = "airline") -> str:
    path = pair / party / "party.toml"
    return invoke("baseline", path, "--job", pair / "job.toml", "--run", pair / "run", *options)


def report(*runs: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(replace_non_finite(content(read_runs(runs)))))
    return found


def test_what_federation_adds_is_the_lift_on_the_same_rows(pair: Path) -> None:
    run = simulate(pair)
    text = baseline(pair)
    assert "airline alone: done" in text
    assert "what federation adds, on 1,024 held-out rows" in text
    found = re.search(r"^AUC +(0\.\d+) +(0\.\d+) +\+(0\.\d+) +0\.\d+ to 0\.\d+ +better", text, re.M)
    assert found is not None, text
    together, alone, added = map(float, found.groups())
    assert together - alone == pytest.approx(added, abs=2e-4) and added > 0.1
    scores, others = (read_scores(f / "scores.parquet") for f in (run, run / "baseline"))
    assert scores.ids.equals(others.ids)
    assert set(others.hosts.to_pylist()) == {""}


def test_the_report_of_the_run_has_the_comparison(pair: Path) -> None:
    run = simulate(pair)
    assert report(run)["runs"][0]["federation"] is None
    baseline(pair)
    section = report(run)["runs"][0]["federation"]
    title, together, alone, added, interval, verdict = section["metrics"][0]
    assert title == "AUC" and added == pytest.approx(together - alone) and verdict == "better"
    assert interval[0] < added < interval[1]
    assert (
        section["caption"]
        == "On 1,024 held-out rows that both score; intervals from 1,000 resamples."
    )
    assert section["notes"] == []
    invoke("report", run, "--out", pair / "r.html")
    assert "What federation adds" in (pair / "r.html").read_text()


def test_the_guests_own_metrics_are_compared_too(
    pair: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (pair / "airline" / "lift_at.py").write_text(
        "import celu\n"
        "@celu.metric(higher_is_better=False)\n"
        "def misses(scores, labels):\n    return float(((scores > 0.5) != labels).mean())\n"
    )
    own = 'loss = "binary"\nmetrics = ["auc", "lift_at:misses"]'
    edit(pair / "airline" / "party.toml", 'loss = "binary"', own)
    edit(pair / "job.toml", "[evaluation]", '[evaluation]\nmetric = "misses"')
    run = simulate(pair)
    text = baseline(pair)
    assert re.search(r"^misses +0\.\d+ +0\.\d+ +-0\.\d+ +-0\.\d+ to -0\.\d+ +better", text, re.M), (
        text
    )
    rows = {row[0]: row for row in report(run)["runs"][0]["federation"]["metrics"]}
    _, together, alone, added, interval, _ = rows["misses"]
    assert added == pytest.approx(together - alone) and added < 0 and interval is None
    (evaluation,) = [e for e in read_events(run) if e["event"] == "evaluation"][-1:]
    assert evaluation["misses"] == together


def test_a_baseline_under_other_settings_is_named_in_the_report(pair: Path) -> None:
    run = simulate(pair)
    edit(pair / "job.toml", "rounds = 40", "rounds = 20")
    baseline(pair)
    notes = report(run)["runs"][0]["federation"]["notes"]
    assert notes == ["rounds: 40 with hosts, 20 in the baseline"]


def test_a_run_without_scores_is_reported_all_the_same(pair: Path) -> None:
    text = baseline(pair)
    assert "to see what federation adds, train with the hosts" in text and "lift" not in text
    run = simulate(pair)
    (run / "scores.parquet").unlink()
    section = report(run)["runs"][0]["federation"]
    assert section["metrics"] == [] and "not compared: " in section["notes"][0]


def test_it_starts_with_the_guests_own_bottom_and_trains_as_a_job_without_hosts(
    pair: Path,
) -> None:
    edit(pair / "job.toml", "z_width = 8", "z_width = 11")
    baseline(pair)
    trained = load_file(pair / "run" / "baseline" / "weights.safetensors")
    settings, job = read_party(pair / "airline" / "party.toml"), celu.read_job(pair / "job.toml")
    together = load_party(settings, job, pair)
    model = settings.require_model().model_copy(update={"z_width": 11})
    job = job.model_copy(update={"hosts": {}})
    alone = load_party(settings.model_copy(update={"model": model}), job, pair)
    assert isinstance(alone, celu.Guest) and alone.bottom and together.bottom
    for name, tensor in together.bottom.state_dict().items():
        assert torch.equal(tensor, alone.bottom.state_dict()[name])
    celu.simulate(job, alone, {})
    weights = weights_of({"bottom": alone.bottom, "top": alone.top})
    assert weights.keys() == trained.keys()
    assert all(torch.equal(tensor, trained[name]) for name, tensor in weights.items())


def test_started_again_it_ends_with_the_same_figures(pair: Path) -> None:
    def figures() -> list[str]:
        return [line for line in baseline(pair).splitlines() if "held-out" in line]

    first = figures()
    assert len(first) == 7 and figures() == first
    edit(pair / "job.toml", "rounds = 40", "rounds = 30")
    with pytest.raises(CheckpointError, match="another contract: rounds"):
        baseline(pair)


def start_from(pair: Path, run: Path) -> None:
    path = pair / "airline" / "party.toml"
    path.write_text(f'start = "{run}"\n' + path.read_text())


def test_a_baseline_of_a_run_with_a_start_begins_with_the_baseline_of_that_start(
    pair: Path,
) -> None:
    last_week = simulate(pair).rename(pair / "last-week")
    start_from(pair, last_week)
    with pytest.raises(ConfigError, match=r"start: .* were trained together with hosts; make that"):
        baseline(pair)
    assert not (pair / "run").exists()
    path = pair / "airline" / "party.toml"
    path.write_text(path.read_text().split("\n", 1)[1])
    baseline(pair, "--run", str(last_week))
    start_from(pair, last_week)
    edit(pair / "job.toml", "every = 20", "every = 1")
    baseline(pair)
    losses = [
        [e["loss"] for e in read_events(run / "baseline") if e["event"] == "evaluation"]
        for run in (last_week, pair / "run")
    ]
    assert abs(losses[1][0] - losses[0][-1]) < 0.02  # after one round
    contract = json.loads((pair / "run" / "baseline" / "run.json").read_text())["contract"]
    assert contract["start_model"] == read_trained(last_week / "baseline").identity.name


def test_a_baseline_is_tracked_as_a_run_is(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []

    class Backend:
        def __init__(self, folder: Path, name: str, settings: object) -> None:
            written.append(str(folder))

        def open(self, round_: int) -> None:
            pass

        def write(self, scalars: dict[str, float], round_: int) -> None:
            written.extend(scalars)

        def close(self, succeeded: bool) -> None:
            written.append(f"closed {succeeded}")

    monkeypatch.setitem(tracker.BACKENDS, "mlflow", Backend)
    path = pair / "airline" / "party.toml"
    path.write_text('tracking = ["mlflow"]\n' + path.read_text())
    baseline(pair)
    assert written[0] == str(pair / "run" / "baseline") and written[-1] == "closed True"
    assert "held-out/auc" in written


def test_auto_becomes_its_own_default_method(pair: Path) -> None:
    text = (pair / "job.toml").read_text()
    start = text.find("[method]")
    if start >= 0:
        text = text[:start] + re.sub(r"^\[method\]\n([^\[]*)", "", text[start:])
    (pair / "job.toml").write_text('method = "auto"\n' + text)
    baseline(pair)
    settings = json.loads((pair / "run" / "baseline" / "settings.json").read_text())
    assert settings["job"]["method"]["auto"] is False and settings["job"]["hosts"] == {}


def test_a_host_and_a_guest_without_features_have_no_baseline(pair: Path) -> None:
    with pytest.raises(ConfigError, match=r"expected the guest's party.toml, got .* host weather"):
        baseline(pair, party="weather")
    path = pair / "airline" / "party.toml"
    path.write_text(re.sub(r"(?m)^bottom = .*\n", "", path.read_text()))
    with pytest.raises(ConfigError, match="a guest without features cannot train alone"):
        baseline(pair)


def test_a_top_that_needs_a_host_can_be_replaced(pair: Path) -> None:
    edit(pair / "airline" / "party.toml", 'top = "wdl"', 'top = "dssm"')
    with pytest.raises(ModelError, match=r"dssm: expected two or more Z .* such as --top wdl"):
        baseline(pair)
    assert "airline alone: done" in baseline(pair, "--top", "wdl")


def test_contracts_are_compared_by_name_without_hosts_and_auto() -> None:
    job = {"rounds": 5, "hosts": {"a": {}}, "method": {"auto": True, "R": 3}, "choices": []}
    alone = {"rounds": 5, "hosts": {}, "method": {"auto": False, "R": 1}, "choices": []}
    assert differences(job, alone) == {"method.R": (3, 1)}
