"""Settings as TOML, so that a run can hand on what it chose as a contract to be read again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from celu.config.job import Choice, Job


def replay_toml(job: Job, choices: list[Choice]) -> str:
    """The contract of a run that chose for itself, with its choices written down.

    A run under it makes the same updates in the same order, so the same bits on equal machines.
    """
    values = job.model_dump(mode="json", exclude={"choices", "codec"}, exclude_none=True)
    values["method"] |= {"auto": False}
    lines = ["# What a run chose for itself, round by round; a run under this contract repeats it."]
    lines += [f"{key} = {_toml(value)}" for key, value in values.items()]
    for choice in choices:
        lines.append("\n[[choices]]")
        dumped = choice.model_dump(mode="json")
        lines += [f"{key} = {_toml(value)}" for key, value in dumped.items()]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        inner = ", ".join(f"{json.dumps(key)} = {_toml(item)}" for key, item in value.items())
        return f"{{ {inner} }}"
    return json.dumps(value)  # strings, numbers and booleans are written alike in both
