"""The file with a tracker's id of a run, so that a resumed run continues it."""

from __future__ import annotations

from pathlib import Path

_FILE = "run-id"


def read_run_id(folder: Path) -> str | None:
    """The id that an earlier attempt wrote into this folder, or None."""
    path = folder / _FILE
    return path.read_text(encoding="utf-8").strip() or None if path.exists() else None


def write_run_id(folder: Path, run_id: str) -> None:
    """Write the id for later attempts."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _FILE).write_text(f"{run_id}\n", encoding="utf-8")
