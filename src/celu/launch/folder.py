"""The run folder that `party.toml` names. Does not import torch, so that errors appear at once."""

from __future__ import annotations

from celu.config.job import Job
from celu.config.party import PartySettings
from celu.run_folder import RunFolder


def open_run_folder(settings: PartySettings, job: Job) -> RunFolder:
    """The run folder of the settings: a new one, or one to resume; raises ConfigError."""
    content = {"job": job.model_dump(mode="json"), "party": settings.model_dump(mode="json")}
    return RunFolder(settings.run_dir, content, resume=True)
