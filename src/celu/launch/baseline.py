"""`celu baseline`: the guest alone, under the contract that it has with its hosts.

It trains on the same rows in the same order, for as many rounds, with the same optimizer, local
steps and evaluations, from the same initial weights of the guest's bottom model. So the difference
to the run with the hosts is what their features add.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from celu.checkpoint.generations import Checkpoints
from celu.config.job import Job
from celu.config.party import ModelSpec, PartySettings
from celu.config.schema import SCHEMA_FILE
from celu.errors import ConfigError, ModelError
from celu.events import Warned
from celu.launch.loading import load_party, read_datasets, test_ids
from celu.launch.precision import matrix_products
from celu.launch.ready import make_ready
from celu.launch.recording import record_result, recording_failure
from celu.party import Guest
from celu.result import Result
from celu.run_folder import BASELINE, RunFolder
from celu.session import guest_session
from celu.transport.link import run_blocking


def contract_alone(job: Job) -> Job:
    """The contract without hosts. Instead of `auto`, which tunes a link, its own values apply."""
    method = job.method.model_copy(update={"auto": False})
    return job.model_copy(update={"hosts": {}, "method": method})


def settings_alone(settings: PartySettings, job: Job, top: str | None = None) -> PartySettings:
    """The guest's settings with the width of Z that it has in the contract; `top` replaces its top.

    If the run starts from an earlier run, its baseline starts from the baseline of that run: other
    weights there were trained with hosts. Raises ConfigError if there is none, for a host, and for
    a guest without features.
    """
    if settings.role != "guest":
        raise ConfigError(
            f"role: expected the guest's party.toml, got that of the host {settings.name}: only "
            "the guest has labels to train with"
        )
    model = settings.require_model()
    if model.bottom is None:
        raise ConfigError(
            "model.bottom: expected a bottom model, got none: a guest without features cannot "
            "train alone"
        )
    start = settings.start
    if start is not None:
        start = start / BASELINE
        if not start.is_dir():
            raise ConfigError(
                f"start: expected the baseline of the run {settings.start} in {start}, got none: "
                "its own weights were trained together with hosts; make that baseline first "
                f"(celu baseline with --run {settings.start}), or remove start to train from "
                "scratch"
            )
    changes: dict[str, Any] = {"z_width": settings.own_width(job)}
    if top is not None:
        changes["top"] = ModelSpec(use=top)
    return settings.model_copy(update={"model": model.model_copy(update=changes), "start": start})


def train_alone(settings: PartySettings, job: Job, source: Path, folder: RunFolder) -> Result:
    """Train the guest of `contract_alone` and `settings_alone`, and record the run in its folder.

    If it was interrupted, it resumes from its last checkpoint. Raises CeluError.
    """
    with recording_failure([folder]), matrix_products(settings):
        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        datasets = read_datasets(settings)
        for warning in datasets.warnings:
            folder.emit(Warned(message=warning))
        folder.write(SCHEMA_FILE, datasets.schema.to_json())
        try:
            guest = load_party(settings, job, source, datasets)
        except ModelError as error:
            raise ModelError(
                f"{error}. If your top model needs the Z of a host, name another one for the "
                "baseline, such as --top wdl"
            ) from error
        assert isinstance(guest, Guest)
        terms = make_ready(settings, job, guest).terms
        checkpoints = Checkpoints(folder.path)
        session = guest_session(
            job.guest,
            guest,
            job,
            {},
            folder.emit,
            checkpoints=checkpoints,
            terms=terms,
            graphs=settings.graphs,
        )
        result = run_blocking(session)
        record_result(folder, job, result, guest, lambda tags: test_ids(settings, tags))
    return result
