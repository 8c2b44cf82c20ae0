"""Mutated files of models in use: runs to export, exported models, and unfinished predictions."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import torch

import celu
from celu.config.party import ModelSettings, PartySettings
from celu.config.serving import read_serving
from celu.launch.recording import record_result
from celu.models.building import build_bottom, build_top
from celu.run_folder import RunFolder
from celu.serving.export import export_run
from celu.serving.model_folder import load_model
from celu.serving.predict_session import Scored
from celu.serving.predicting import num_classes
from celu.serving.rows import ChunkPlan, Section
from celu.serving.scoring_parts import WORK_FILE, ScoringParts

from .more_files import Reader
from .values import mutated_body, mutated_bytes

SERVING = 'guest = "guest"\nhosts = ["host"]\ncodec = "int8"\nchunk_rows = 64\n'
OPTIONS = {"hidden": [4]}
PLAN = ChunkPlan((Section("test", True, 6),), 2)
WORK = {"contract": {"model": "m"}, "rows": {"guest": "a" * 64}}


def model_files(folder: Path) -> Iterator[Reader]:
    """`serving.toml`, `trained.json`, `model.json`, and the files of a work folder."""
    (folder / "serving.toml").write_text(SERVING)
    yield Reader(
        "serving.toml",
        "serving.toml",
        mutated_bytes,
        lambda path: read_serving(path / "serving.toml").contract(),
    )
    _train(folder / "trained")
    export_run(folder / "trained", folder / "model")

    def export(path: Path) -> None:
        with TemporaryDirectory() as scratch:
            export_run(path / "trained", Path(scratch) / "model")

    def load(path: Path) -> None:
        model = load_model(path / "model")
        assert model.facts.hosts and num_classes(model) is None

    yield Reader("trained.json", "trained/trained.json", mutated_body, export)
    yield Reader("model.json", "model/model.json", mutated_body, load)
    yield Reader("model weights", "model/weights.safetensors", mutated_bytes, load)
    with _parts(folder) as parts:
        parts.begin(WORK, PLAN)
        for number in range(2):
            ids = pa.array([f"row-{number}-{row}" for row in range(2)])
            parts.add(Scored(number, ids, torch.rand(2, dtype=torch.float64), False))

    def resume(path: Path) -> None:
        with TemporaryDirectory() as scratch:
            name = parts.folder.name
            shutil.copytree(path / name, Path(scratch) / name)
            with _parts(Path(scratch)) as copy:
                for number in range(copy.begin(WORK, PLAN), 3):
                    ids = pa.array([f"row-{number}-{row}" for row in range(2)])
                    copy.add(Scored(number, ids, torch.rand(2, dtype=torch.float64), False))
                copy.finish(None)
            assert (Path(scratch) / "scores.parquet").exists()

    part = next(parts.folder.glob("part-*")).name
    for file, mutate in ((WORK_FILE, mutated_body), (part, mutated_bytes)):
        yield Reader(f"scoring {file}", f"{parts.folder.name}/{file}", mutate, resume)


def _parts(folder: Path) -> ScoringParts:
    out = folder / "scores.parquet"
    return ScoringParts(out, model="m", output="binary", hosts="host", part_rows=2)


def _train(run: Path) -> None:
    """The run folder of a guest that has trained with one host."""
    torch.manual_seed(1)
    rows = celu.Dataset({"numbers": torch.randn(16, 2)}, (torch.arange(16) % 2).float())
    terms = {"host": celu.HostTerms(z_width=3)}
    job = celu.Job(rounds=2, batch_size=8, hosts=terms, evaluation=celu.Evaluation(every=2))
    bottoms = [
        build_bottom("wdl", OPTIONS, z_width=3, columns={"numbers": 2}, sizes={}) for _ in range(2)
    ]
    top = build_top("wdl", {}, z_widths=[3, 3])
    guest = celu.Guest(bottom=bottoms[0], top=top, loss="binary", train=rows, test=rows)
    host = celu.Host(bottom=bottoms[1], train=rows, test=rows)
    model = ModelSettings.model_validate(
        {"bottom": {"use": "wdl", **OPTIONS}, "top": "wdl", "loss": "binary"}
    )
    party = PartySettings(role="guest", name="guest", model=model)
    content = {"job": job.model_dump(mode="json"), "party": party.model_dump(mode="json")}
    folder = RunFolder(run, content)
    record_result(folder, job, celu.simulate(job, guest, {"host": host}), guest)
