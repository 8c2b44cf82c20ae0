"""`replay.toml`: the job of a run with `auto`, with its choices fixed."""

from __future__ import annotations

from celu.config.job import Choice, Job
from celu.config.job_toml import to_toml


def replay_toml(job: Job, choices: list[Choice]) -> str:
    """The job as TOML, with the choices in place of `auto`.

    A run with it makes the same updates in the same order: the same bits on equal machines.
    """
    values = job.model_dump(mode="json", exclude={"choices", "codec"}, exclude_none=True)
    values["method"] |= {"auto": False}
    if "metric" not in job.evaluation.model_fields_set:  # a chosen one has to fit the loss
        del values["evaluation"]["metric"]
    lines = ["# The choices of a run with method = auto, by round. A run with this job repeats it."]
    lines += [f"{key} = {to_toml(value)}" for key, value in values.items()]
    for choice in choices:
        lines.append("\n[[choices]]")
        dumped = choice.model_dump(mode="json")
        lines += [f"{key} = {to_toml(value)}" for key, value in dumped.items()]
    return "\n".join(lines) + "\n"
