"""The trackers that `party.toml` names record what `celu run` and `celu simulate` train."""

from __future__ import annotations

from pathlib import Path

import pytest

from celu.record.run import RunRecord
from cli.pair import Pair, celu, pair_at
from tracking.readers import PACKAGES, points, settings

# The libraries' own imports emit warnings.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def pair(tmp_path: Path, keys: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    for name in PACKAGES.values():
        pytest.importorskip(name, reason=f"the extra {name} is absent")
    for variable in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "WANDB_MODE"):
        monkeypatch.delenv(variable, raising=False)
    pair = pair_at(tmp_path, keys)
    for name in ("airline", "weather"):
        tracking = f"connect_s = 600\ntracking = {list(PACKAGES)}".replace("'", '"')
        pair.edit(f"{name}/party.toml", "connect_s = 600", tracking)
    return pair


def assert_tracked(run: Path) -> None:
    record = RunRecord(run)
    for kind in PACKAGES:
        found = points(kind, run)
        assert sorted(found["bytes/sent"]) == [event.round for event in record.rounds]
        assert {n: v[-1] for n, v in found.get("held-out/auc", {}).items()} == {
            event.round: pytest.approx(event.metrics["auc"]) for event in record.evaluations
        }
    assert settings("mlflow", run)["guest"] == "airline"


def test_each_partys_trackers_record_a_simulation(pair: Pair, tmp_path: Path) -> None:
    out = tmp_path / "out"
    parties = [pair.folder / name / "party.toml" for name in ("airline", "weather")]
    done = celu("simulate", *parties, "--job", pair.folder / "job.toml", "--out", out)
    assert done.returncode == 0, done.stderr
    assert "tracking" not in done.stdout  # no warnings
    assert RunRecord(out).evaluations and not RunRecord(out / "hosts" / "weather").evaluations
    assert_tracked(out)
    assert_tracked(out / "hosts" / "weather")


def test_each_partys_trackers_record_a_run(pair: Pair) -> None:
    guest, host = pair.run()
    assert guest.code == 0 and host.code == 0, guest.err + host.err
    for name in ("airline", "weather"):
        assert_tracked(pair.folder / name / "run")
