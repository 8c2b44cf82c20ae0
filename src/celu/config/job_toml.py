"""Writes a job as `job.toml`, so that reading it gives an equal job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from celu.config.job import Job


def job_toml(job: Job, comment: str) -> str:
    """The settings that are given in a job, as TOML below a comment of one line.

    Defaults stay left out, so that `auto` still chooses what the user did not fix.
    """
    values = job.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    tables = {k: v for k, v in values.items() if isinstance(v, Mapping)}
    lines = [f"# {comment}"]
    lines += [f"{k} = {to_toml(v)}" for k, v in values.items() if k not in (*tables, "choices")]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(f"{_key(k)} = {to_toml(v)}" for k, v in table.items())]
    for choice in values.get("choices", []):
        lines += ["", "[[choices]]", *(f"{k} = {to_toml(v)}" for k, v in choice.items())]
    return "\n".join(lines) + "\n"


def to_toml(value: Any) -> str:
    """A value as TOML on one line."""
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(key)} = {to_toml(item)}" for key, item in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list):
        return f"[{', '.join(to_toml(item) for item in value)}]"
    return json.dumps(value)  # strings, numbers and booleans look the same in JSON and TOML


def _key(key: str) -> str:
    return key if key.isascii() and key.replace("-", "").replace("_", "").isalnum() else f'"{key}"'
