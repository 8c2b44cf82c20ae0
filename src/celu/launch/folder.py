"""The run folder that `party.toml` names. Does not import torch, so that errors appear at once."""

from __future__ import annotations

from celu.config.job import Job
from celu.config.party import PartySettings
from celu.run_folder import RunFolder


def open_run_folder(settings: PartySettings, job: Job, *, keep_done: bool = False) -> RunFolder:
    """The run folder of the settings: a new one, or one to resume; raises ConfigError.

    For `keep_done` see `RunFolder`.
    """
    content = {"job": job.model_dump(mode="json"), "party": settings.model_dump(mode="json")}
    return RunFolder(settings.run_dir, content, resume=True, keep_done=keep_done)
