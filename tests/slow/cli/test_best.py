"""Two companies with validation rows: from raw files to the best model at both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from celu.config.templates import SettingsTemplate, write_settings
from celu.data.store import open_store
from celu.metrics.measure import compute
from celu.model_identity import digest_weights
from celu.testing import free_port, read_events
from cli.pair import Pair, celu, ended

NAMES = ("airline", "weather")
TEMPLATE = SettingsTemplate(
    guest="airline",
    host="weather",
    bottom='{ use = "wdl", embedding_dim = 4, hidden = [8] }',
    top='"wdl"',
    batch_size=64,
    z_width=8,
    rounds=90,
    evaluate_every=10,
)
SCHEMAS = {
    "airline": 'id = "flight"\nlabel = "late"\n',
    "weather": 'id = "flight"\n',
}
SPLIT = "[split]\ntest = 0.2\nvalidation = 0.2\n"


def write_raw(folder: Path, name: str, flights: Any) -> None:
    random = np.random.default_rng(5)
    x, y, noise = random.normal(size=(3, 2000))
    lines = ["flight,late,a" if name == "airline" else "flight,b"]
    for n in flights:
        late = int(x[n] + y[n] + 2 * noise[n] > 0.5)
        lines.append(f"f{n},{late},{x[n]}" if name == "airline" else f"f{n},{y[n]}")
    (folder / name).mkdir(parents=True)
    (folder / name / "raw.csv").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, keys: Path) -> Pair:
    """Two parties with aligned stores that overlap in part, and the run that they made."""
    folder = tmp_path_factory.mktemp("best")
    shuffled = np.random.default_rng(1).permutation(1800) + 200
    write_raw(folder, "airline", range(1800))
    write_raw(folder, "weather", shuffled)
    port = free_port()
    write_settings(folder, TEMPLATE, port=port, local=True, aligned=False)
    for name in NAMES:
        schema = folder / name / "schema.toml"
        column = "a" if name == "airline" else "b"
        schema.write_text(f"{SCHEMAS[name]}{SPLIT}[numbers]\n{column} = {{}}\n")
        (folder / name / "certs").symlink_to(keys / name / "certs")
        party = folder / name / "party.toml"
        party.write_text(party.read_text().replace("[peers", "connect_s = 600\n[peers", 1))
        made = celu(
            "prepare",
            folder / name / "raw.csv",
            "--schema",
            schema,
            "--out",
            folder / name / "store",
        )
        assert made.returncode == 0, made.stderr
        assert " validation and " in made.stdout
    made_pair = Pair(folder, port)
    made_pair.edit("job.toml", "every = 10", "every = 10\npatience = 3")
    for command in ("align", "run"):
        both = [made_pair.start(name, command=command) for name in NAMES]
        for process in both:
            end = ended(process)
            assert end.code == 0, end.err + end.out
    return made_pair


def test_validation_rows_are_aligned(pair: Pair) -> None:
    facts = [
        json.loads((pair.folder / name / "alignment" / "alignment.json").read_text())
        for name in NAMES
    ]
    assert facts[0]["rows"] == facts[1]["rows"] and facts[0]["rows"]["validation"] > 200
    assert facts[0]["commitments"] == facts[1]["commitments"]
    assert sum(facts[0]["rows"].values()) == 1600


def test_both_parties_record_the_weights_of_the_same_round(pair: Pair) -> None:
    summaries, trained = (
        [json.loads((pair.folder / name / "run" / file).read_text()) for name in NAMES]
        for file in ("summary.json", "trained.json")
    )
    events = read_events(pair.folder / "airline" / "run")
    best = [e["round"] for e in events if e["event"] == "evaluation" and e["best"]][-1]
    assert [summary["best_round"] for summary in summaries] == [best, best]
    assert trained[0]["identity"] == trained[1]["identity"]
    assert trained[0]["identity"]["round"] == best
    for name in NAMES:
        weights = load_file(pair.folder / name / "run" / "weights.safetensors")
        assert digest_weights(weights) == trained[0]["identity"]["weights"][name]
    assert summaries[0]["test"] and not summaries[1]["test"]


def test_predictions_of_the_exported_parts_have_the_reported_metrics(
    pair: Pair, tmp_path: Path
) -> None:
    import celu as library

    models = {}
    for name in NAMES:
        made = celu("export", pair.folder / name / "run", "--out", tmp_path / name)
        assert made.returncode == 0, made.stderr
        models[name] = library.load_model(tmp_path / name)
    opened = {
        name: open_store(pair.folder / name / "store").datasets(
            alignment=pair.folder / name / "alignment"
        )
        for name in NAMES
    }
    events = read_events(pair.folder / "airline" / "run")
    reported = {
        "validation": [e for e in events if e["event"] == "evaluation" and e["best"]][-1],
        "test": [e for e in events if e["event"] == "test"][-1],
    }
    for part, event in reported.items():
        rows = {name: getattr(opened[name], part) for name in NAMES}
        guest, host = models["airline"], {"weather": (models["weather"], rows["weather"])}
        scores = library.predict(guest, rows["airline"], host).scores
        labels = rows["airline"].labels.double().numpy()
        assert compute("binary", scores, labels, ["auc"])["auc"] == pytest.approx(event["auc"])
        losses = torch.nn.functional.binary_cross_entropy(
            torch.tensor(scores), torch.tensor(labels)
        )
        assert float(losses) == pytest.approx(event["loss"], rel=1e-5)


def test_the_terminal_and_the_report_name_the_best_round(pair: Pair, tmp_path: Path) -> None:
    best = json.loads((pair.folder / "weather" / "run" / "summary.json").read_text())["best_round"]
    again = [pair.start(name) for name in NAMES]
    for process in again:
        end = ended(process)
        assert end.code == 0, end.err
        assert f"{best}, the best on validation rows" in " ".join(end.out.split())
    page = tmp_path / "report.html"
    made = celu("report", pair.folder / "airline" / "run", "--out", page)
    assert made.returncode == 0, made.stderr
    assert f'"test_round": {best}' in page.read_text() or f'"test_round":{best}' in page.read_text()
