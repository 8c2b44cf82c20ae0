"""Writes one party's part of a trained model as a folder of its own; `model_folder` reads it.

It reads the party's run folder only: no store, no peer. With a format for other runtimes it also
imports the party's modules.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError
from torch import nn

from celu.config.job import Job
from celu.config.party import PartySettings
from celu.config.reading import describe, read_json, validate
from celu.config.schema import SCHEMA_FILE, StoreSchema, read_store_schema
from celu.data.folder import NewFolder
from celu.errors import ConfigError
from celu.model_identity import TRAINED, TrainedModel
from celu.record.run import RunRecord
from celu.serving.card import card
from celu.serving.model_folder import (
    CARD_FILE,
    MAX_COLUMNS,
    MODEL_FILE,
    WEIGHTS_FILE,
    ModelFacts,
    build_model,
    read_weights,
    z_clip_of,
)
from celu.serving.runtimes import check_formats, write_modules


def export_run(
    run: Path | str,
    out: Path | str,
    *,
    replace: bool = False,
    formats: Sequence[str] = (),
    modules: Path | None = None,
    bottom: nn.Module | None = None,
    top: nn.Module | None = None,
) -> ModelFacts:
    """Write the model of a finished run to a new folder; returns what `model.json` says.

    `formats`, "pt2" and "onnx", add the modules for other runtimes. They need the modules: Python
    searches the folder `modules` first for a user's own, and `bottom` and `top` are for a run with
    modules from Python, as for `load_model`.

    Raises ConfigError for a folder that holds no finished run, if `out` exists and `replace` is not
    given, and for a format whose package is not installed; ModelError for weights of another model
    and for modules that a format cannot express. Nothing is written then.
    """
    run, out = Path(run), Path(out)
    wanted = check_formats(formats)
    record = RunRecord(run)
    if record.status != "done":
        raise ConfigError(
            f"{run}: expected a run that is done, got one with status {record.status!r}; wait for "
            "its end, or start it again at all parties to finish it"
        )
    trained = read_trained(run)
    schema = read_store_schema(run) if (run / SCHEMA_FILE).exists() else None
    facts = _facts(run, record, trained, schema)
    weights = read_weights(run / WEIGHTS_FILE, facts, "train again")
    with NewFolder(out, MODEL_FILE, replace=replace, private=True) as folder:
        files: list[str] = []
        if wanted:
            model = build_model(
                facts, weights, schema, run, modules=modules, bottom=bottom, top=top
            )
            files = write_modules(model, folder.path, wanted)
        try:
            shutil.copyfile(run / WEIGHTS_FILE, folder.path / WEIGHTS_FILE)
            if schema is not None:
                schema.write(folder.path)
            _write(folder.path / MODEL_FILE, facts.model_dump_json(indent=2) + "\n")
            _write(folder.path / CARD_FILE, card(facts, record, trained, schema, files))
            folder.publish()
        except OSError as error:
            raise ConfigError(f"{out}: cannot be written: {error.strerror}") from error
    return facts


def _facts(
    run: Path, record: RunRecord, trained: TrainedModel, schema: StoreSchema | None
) -> ModelFacts:
    job, party = _settings(run, record)
    model = party.model
    has_own_z = bool(trained.inputs) and (party.role == "host" or model is not None)
    try:
        return ModelFacts(
            party=party.name,
            role=party.role,
            guest=job.guest,
            hosts={name: terms.z_width for name, terms in job.hosts.items()},
            identity=trained.identity,
            inputs=_columns(run, party, trained, schema),
            input_specs=trained.inputs,
            sizes=trained.sizes,
            z_width=party.own_width(job) if has_own_z else None,
            bottom=None if model is None else model.bottom,
            top=None if model is None else model.top,
            output=trained.output,
            label_map=trained.label_map,
            mean_z=trained.mean_z,
            schema_digest=None if schema is None else schema.digest(),
            own_weights=trained.own_weights,
            z_clip=z_clip_of(job) if party.role == "host" else None,
        )
    except ValidationError as error:
        raise ConfigError(f"{run}: {describe(error)[0]}; was a file of the run edited?") from error


def _columns(
    run: Path, party: PartySettings, trained: TrainedModel, schema: StoreSchema | None
) -> dict[str, list[str]]:
    """The names of the columns of each input; numbered for rows that came from Python."""
    if schema is None:
        for name, spec in trained.inputs.items():
            if spec.num_columns > MAX_COLUMNS:
                raise ConfigError(
                    f"{run / TRAINED}: inputs.{name}: expected at most {MAX_COLUMNS:,} columns, "
                    f"got {spec.num_columns:,}"
                )
        return {name: spec.numbered_columns(name) for name, spec in trained.inputs.items()}
    named = schema.inputs()
    if party.data is not None and party.data.inputs is not None:
        named = party.data.inputs
    missing = sorted(trained.inputs.keys() - named.keys())
    if missing:
        raise ConfigError(
            f"{run / SCHEMA_FILE}: expected the columns of input {missing[0]!r}, got none; was a "
            "file of the run edited?"
        )
    return {name: list(named[name]) for name in trained.inputs}


def _settings(run: Path, record: RunRecord) -> tuple[Job, PartySettings]:
    """The contract and the private settings of a run."""
    path = run / "settings.json"
    settings = record.settings
    return (
        validate(Job, dict(settings.get("job", {})), path),
        validate(PartySettings, dict(settings.get("party", {})), path),
    )


def read_trained(run: Path) -> TrainedModel:
    """The identity and the facts of the model that a run trained; raises ConfigError."""
    train = "a run of an older release has none: train again"
    return read_json(TrainedModel, run / TRAINED, "the identity of a trained model", train)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
