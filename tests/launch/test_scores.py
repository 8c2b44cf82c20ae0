"""A run leaves the scores of its held-out rows, with ids and labels, and a resumed one has them."""

from __future__ import annotations

import copy
import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.metrics import roc_auc_score
from typer.testing import CliRunner

import celu
from celu.checkpoint.generations import Checkpoints
from celu.cli.app import app
from celu.data.row_ids import read_ids
from celu.data.tags import TAG_BYTES
from celu.errors import ConfigError, ModelError
from celu.launch.recording import record_result
from celu.metrics.measure import compute
from celu.models.tops import WideDeepTop
from celu.record.run import RunRecord
from celu.report.comparison import compare, what_federation_adds
from celu.run_folder import RunFolder
from celu.scores.file import read_scores
from cli.pair import pair_at
from federation import Federation, federation, with_validation, with_weights
from scores.samples import write_scores
from stores import write_store


def invoke(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def flights(tmp_path: Path) -> Path:
    pair_at(tmp_path, tmp_path / "keys")
    path = tmp_path / "job.toml"
    path.write_text(path.read_text().replace("rounds = 60", "rounds = 20"))
    return tmp_path


def simulate(folder: Path, out: str = "run") -> Path:
    parties = [folder / name / "party.toml" for name in ("airline", "weather")]
    invoke("simulate", *parties, "--job", folder / "job.toml", "--out", folder / out)
    return folder / out


def last_evaluation(run: Path) -> dict[str, float]:
    lines = (run / "events.jsonl").read_text().splitlines()
    found: dict[str, float] = [e for e in map(json.loads, lines) if e["event"] == "evaluation"][-1]
    return found


def test_a_run_leaves_the_scores_of_its_test_rows_by_id_with_their_labels(flights: Path) -> None:
    run = simulate(flights)
    scores = read_scores(run / "scores.parquet")
    store = celu.open_store(flights / "airline" / "store")
    rows = [row for batch in store.batches("test", ["id", "label"]) for row in batch.to_pylist()]
    assert scores.ids.to_pylist() == [row["id"] for row in rows]
    assert scores.labels is not None
    assert scores.labels.tolist() == [row["label"] for row in rows]
    assert scores.hosts.to_pylist() == ["weather"] * len(rows) and not scores.fallback.any()
    assert scores.model == json.loads((run / "summary.json").read_text())["model"]
    assert (run / "scores.parquet").stat().st_mode & 0o777 == 0o600
    assert not list(run.glob("*.partial"))


def test_celu_evaluate_reads_them_and_finds_the_figures_of_the_run(flights: Path) -> None:
    run = simulate(flights)
    out = flights / "e.json"
    text = invoke(
        "evaluate", run / "scores.parquet", "--resamples", "100", "--by", "hosts", "--json", out
    )
    assert "1,024 rows evaluated" in text and "weather" in text
    found = json.loads(out.read_text())["overall"]["metrics"]
    reported = last_evaluation(run)
    assert len(found) == 6
    for name, figure in found.items():
        assert figure["value"] == reported[name], name


def test_columns_to_slice_by_and_scores_without_labels_need_a_labels_file(flights: Path) -> None:
    run = simulate(flights)
    with pytest.raises(ConfigError, match="--by: expected --labels, the file with the columns cit"):
        invoke("evaluate", run / "scores.parquet", "--by", "city")
    write_scores(flights / "s.parquet", np.linspace(0, 1, 20))
    with pytest.raises(ConfigError, match=r"--labels: expected .*s.parquet has scores only"):
        invoke("evaluate", flights / "s.parquet")


def test_party_toml_chooses_metrics_and_names_ones_own(
    flights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (flights / "airline" / "airline_metrics.py").write_text(
        "import celu\n"
        "@celu.metric(higher_is_better=False)\n"
        "def miss(scores, labels):\n    return abs(scores - labels).mean()\n"
    )
    path = flights / "airline" / "party.toml"
    own = 'loss = "binary"\nmetrics = ["ks", "airline_metrics:miss"]'
    path.write_text(path.read_text().replace('loss = "binary"', own))
    job = flights / "job.toml"
    job.write_text(job.read_text().replace("[evaluation]", '[evaluation]\nmetric = "miss"'))
    run = simulate(flights)
    reported = last_evaluation(run)
    assert {"loss", "ks", "miss"} <= reported.keys() and "auc" not in reported


def results(fed: Federation, folder: Path) -> tuple[celu.Result, celu.Result]:
    """Of a run, and of the same run started again after its last checkpoint."""
    names = (fed.job.guest, *fed.hosts)
    first, again = (
        celu.simulate(
            fed.job,
            fed.guest,
            fed.hosts,
            checkpoints={name: Checkpoints(folder / name) for name in names},
        )
        for _ in range(2)
    )
    return first, again


@pytest.mark.parametrize("loss", ["binary", "multiclass", "regression"])
def test_a_run_that_was_killed_at_its_very_end_still_has_its_scores(
    loss: str, tmp_path: Path
) -> None:
    first, again = results(federation(loss=loss), tmp_path)
    assert first.scores is not None and again.scores is not None
    assert again.rounds == first.rounds
    assert np.array_equal(first.scores.scores, again.scores.scores)
    assert np.array_equal(first.scores.labels, again.scores.labels)
    assert first.scores.output == again.scores.output


def test_the_labels_of_a_killed_run_are_the_classes_that_it_trained_on(tmp_path: Path) -> None:
    fed = federation()

    def one_and_two(rows: celu.Dataset) -> celu.Dataset:
        assert rows.labels is not None
        return celu.Dataset(rows.inputs, rows.labels + 1, rows.sizes)

    train, test = one_and_two(fed.guest.train), one_and_two(fed.guest.test)
    fed.guest = replace(fed.guest, train=train, test=test)
    first, again = results(fed, tmp_path)
    assert first.scores is not None and again.scores is not None
    assert set(first.scores.labels.tolist()) == {0, 1}
    assert np.array_equal(first.scores.labels, again.scores.labels)


def test_with_validation_rows_the_scores_are_of_the_test_rows(tmp_path: Path) -> None:
    fed = with_validation(federation())
    validation, test = fed.guest.validation, fed.guest.test
    assert validation is not None and validation.num_rows > test.num_rows
    first, again = results(fed, tmp_path)
    for result in (first, again):
        assert result.scores is not None and len(result.scores) == test.num_rows
        measured = compute("binary", result.scores.scores, result.scores.labels, ["auc"])
        assert measured["auc"] == result.metrics["auc"]
    assert first.scores is not None and again.scores is not None
    assert np.array_equal(first.scores.scores, again.scores.scores)


def test_rows_without_ids_are_numbered(tmp_path: Path) -> None:
    fed = federation(loss="multiclass", evaluation=celu.Evaluation(every=7, rows=50))
    result = celu.simulate(fed.job, fed.guest, fed.hosts)
    record_result(RunFolder(tmp_path / "run", {}), fed.job, result, fed.guest)
    scores = read_scores(tmp_path / "run" / "scores.parquet")
    assert scores.ids.to_pylist() == [str(row) for row in range(50)]
    assert scores.scores.shape == (50, 3)
    found = celu.evaluate(scores.path, resamples=0)
    assert found.metrics["accuracy"] == result.metrics["accuracy"]


def test_weights_of_rows_are_among_the_scores_and_count_wherever_those_are_read(
    tmp_path: Path,
) -> None:
    weights = torch.arange(192) % 4 + 0.5
    fed = with_weights(federation(), weights, test=weights)
    alone = Federation(fed.job.model_copy(update={"hosts": {}}), fed.guest, {})
    assert fed.guest.bottom is not None
    top = WideDeepTop([5], 1, init_std=0.2)
    alone.guest = replace(fed.guest, top=top, bottom=copy.deepcopy(fed.guest.bottom))
    run = tmp_path / "run"
    for one, folder in ((fed, run), (alone, run / "baseline")):
        result = celu.simulate(one.job, one.guest, one.hosts)
        settings = {"job": one.job.model_dump(mode="json"), "party": {"role": "guest"}}
        record_result(RunFolder(folder, settings), one.job, result, one.guest)
        scores = read_scores(folder / "scores.parquet")
        assert scores.weights is not None and scores.labels is not None
        assert scores.weights.tolist() == weights.tolist()
        found = celu.evaluate(folder / "scores.parquet", resamples=0)
        assert found.weighted
        assert found.metrics["auc"] == pytest.approx(result.metrics["auc"])
        assert found.metrics["auc"] == pytest.approx(
            roc_auc_score(scores.labels, scores.scores, sample_weight=scores.weights)
        )
        text = invoke("evaluate", folder / "scores.parquet", "--resamples", "0")
        assert "192 rows evaluated, by their weights" in text
    compared = compare(run, run / "baseline")
    assert compared.weighted
    section = what_federation_adds(RunRecord(run))
    assert section is not None and "both score, by their weights;" in section["caption"]
    table = pa.table({"id": [str(n) for n in range(192)], "label": scores.labels})
    pq.write_table(table, tmp_path / "y.parquet")
    again = celu.evaluate(run / "scores.parquet", tmp_path / "y.parquet", resamples=0)
    assert again.weighted
    assert again.metrics["auc"] == compared.metrics["auc"]


def test_a_store_that_changed_during_the_run_costs_the_scores_and_not_the_run(
    tmp_path: Path,
) -> None:
    store = write_store(tmp_path / "store", {"x": np.zeros(192, np.float32)})
    fed = federation()
    rows = fed.guest.test
    other_tags = np.zeros((192, TAG_BYTES), np.uint8)
    test = celu.Dataset(rows.inputs, rows.labels, rows.sizes, other_tags)
    result = celu.simulate(fed.job, fed.guest, fed.hosts)
    folder, events = RunFolder(tmp_path / "run", {}), list[celu.Event]()
    folder.add_callback(events.append)
    read = partial(read_ids, store, "test", None)
    record_result(folder, fed.job, result, replace(fed.guest, test=test), read)
    assert "the store changed since then" in events[-1].fields["message"]
    files = {path.name for path in folder.path.iterdir()}
    assert "summary.json" in files and not any("scores" in name for name in files)


def test_a_simulation_that_fails_before_its_first_round_blocks_nothing(flights: Path) -> None:
    path = flights / "airline" / "party.toml"
    good = path.read_text()
    (flights / "airline" / "broken.py").write_text(
        "def loss(output, labels):\n    return (output.reshape(-1) - labels).mean()\n"
    )
    path.write_text(good.replace('loss = "binary"', 'loss = "broken:loss"'))
    with pytest.raises(ModelError):
        simulate(flights)
    summary = json.loads((flights / "run" / "summary.json").read_text())
    assert summary["status"] == "ModelError"
    path.write_text(good)
    assert (simulate(flights) / "scores.parquet").exists()
    with pytest.raises(ConfigError, match="a run that cannot be resumed"):
        simulate(flights)
    assert (flights / "run" / "scores.parquet").exists()
