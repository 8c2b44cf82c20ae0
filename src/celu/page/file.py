"""Writes a page, or another text for the user, completely or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from celu.errors import ConfigError


def write(text: str, out: Path, option: str = "--out") -> None:
    """Write a text atomically; raises ConfigError with the command's option if that fails."""
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(out)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise ConfigError(
            f"{option}: cannot write {out} ({error.strerror or error}); choose another file"
        ) from error
