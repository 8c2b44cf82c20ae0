"""Several run folders at once: each one once, each by a name that tells it apart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from celu.errors import ConfigError
from celu.record.run import RunRecord


def read_runs(paths: Sequence[Path]) -> list[RunRecord]:
    """The runs of these folders; raises ConfigError, also for a folder that is named twice."""
    seen: dict[Path, Path] = {}
    for path in paths:
        where = path.resolve()
        if where in seen:
            raise ConfigError(f"{path}: expected each run folder once, got it as {seen[where]} too")
        seen[where] = path
    return [RunRecord(path) for path in paths]


def labels(records: Sequence[RunRecord]) -> list[str]:
    """Each run by as much of its path as tells it apart, and by its party."""
    paths = [record.path.resolve().parts for record in records]
    found = []
    for record, own in zip(records, paths, strict=True):
        length = 1
        while length < len(own) and sum(p[-length:] == own[-length:] for p in paths) > 1:
            length += 1
        tail = own[-length:]
        found.append("/".join(tail) + ("" if record.name in tail else f" · {record.name}"))
    return found
