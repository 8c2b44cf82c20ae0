"""The model of two real parties: exported at each, it computes the metrics of its run."""

from __future__ import annotations

from pathlib import Path

import torch

from celu.data.memory_map import open_datasets
from celu.data.store import open_store
from celu.metrics.measure import compute
from celu.models.losses import to_scores
from celu.serving.model_folder import load_model
from celu.testing import make_keys, read_events
from cli.pair import celu, pair_at


def test_each_party_exports_its_part_and_the_parts_compute_the_auc_of_the_run(
    tmp_path: Path,
) -> None:
    make_keys(tmp_path / "keys", ["airline", "weather"])
    pair = pair_at(tmp_path, tmp_path / "keys")
    guest_ended, host_ended = pair.run()
    assert (guest_ended.code, host_ended.code) == (0, 0), guest_ended.err + host_ended.err
    models, rows = {}, {}
    for name in ("airline", "weather"):
        out = tmp_path / "models" / name
        done = celu("export", tmp_path / name / "run", "--out", out)
        assert done.returncode == 0, done.stderr
        models[name] = load_model(out)
        assert models[name].name in done.stdout
        assert "| encryption | mutual TLS 1.3 |" in (out / "card.md").read_text()
        store = open_store(tmp_path / name / "store")
        datasets = open_datasets(store, store.inputs(), label=name == "airline")
        assert models[name].schema is not None
        assert models[name].schema.digest() == store.schema.digest()
        rows[name] = datasets.test
        models[name].check_rows(datasets.test, name)
    guest, host = models["airline"], models["weather"]
    assert guest.name == host.name and guest.top is not None
    outputs = []
    for start in range(0, len(rows["airline"]), 64):  # the batches of the run's evaluation
        part = slice(start, start + 64)
        z = host.activations(rows["weather"].take(part))
        with torch.no_grad():
            outputs.append(guest.top(guest.activations(rows["airline"].take(part)), z))
    labels = rows["airline"].labels
    assert labels is not None
    evaluations = [
        e for e in read_events(tmp_path / "airline" / "run") if e["event"] == "evaluation"
    ]
    scores = to_scores(torch.cat(outputs), "binary").numpy()
    measured = compute("binary", scores, labels.double().numpy(), ["auc"])
    assert measured["auc"] == evaluations[-1]["auc"]
