"""Opens several run folders, each with a short unique label."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from celu.errors import ConfigError
from celu.record.run import RunRecord


def read_runs(paths: Sequence[Path], max_bytes: int | None = None) -> list[RunRecord]:
    """Read these run folders; raises ConfigError for a bad folder or one that is given twice.

    For `max_bytes` see `RunRecord`.
    """
    seen: dict[Path, Path] = {}
    for path in paths:
        resolved = path.resolve()
        if resolved in seen:
            raise ConfigError(
                f"{path}: this run folder is given twice, also as {seen[resolved]}; "
                "name each run folder once"
            )
        seen[resolved] = path
    return [RunRecord(path, max_bytes) for path in paths]


def labels(records: Sequence[RunRecord]) -> list[str]:
    """A label for each run: the shortest unique end of its path, and its party."""
    paths = [record.path.resolve().parts for record in records]
    found = []
    for record, own in zip(records, paths, strict=True):
        length = 1
        while length < len(own) and sum(p[-length:] == own[-length:] for p in paths) > 1:
            length += 1
        end = own[-length:]
        found.append("/".join(end) + ("" if record.name in end else f" · {record.name}"))
    return found
