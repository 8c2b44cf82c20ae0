"""Which run a folder belongs to: a name that its parties share, and the contract it has.

It is kept in `run.json`, and once more in every generation, so that neither a torn nor a flipped
byte of it loses a run.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from celu.checkpoint.disk import Disk
from celu.errors import CheckpointError

FILE = "run.json"
_ID_DIGITS = 32


@dataclass(frozen=True)
class RunIdentity:
    """A run's id, and its contract by the names of its fields."""

    run: str
    contract: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """What is kept of it."""
        return {"run": self.run, "contract": dict(self.contract)}

    @staticmethod
    def from_json(value: Any) -> RunIdentity:
        """What was kept; raises ValueError for anything else."""
        if not isinstance(value, dict) or value.keys() != {"run", "contract"}:
            raise ValueError("expected a run and its contract")
        if not is_run_id(value["run"]) or not isinstance(value["contract"], dict):
            raise ValueError("expected the id of a run and its contract")
        return RunIdentity(value["run"], value["contract"])


def new_run_id() -> str:
    """An id that no other run has."""
    return secrets.token_hex(_ID_DIGITS // 2)


def is_run_id(value: object) -> bool:
    """Whether a value, which may be a peer's, is the id of a run."""
    return (
        isinstance(value, str)
        and len(value) == _ID_DIGITS
        and set(value) <= set("0123456789abcdef")
    )


def read_identity(folder: Path, disk: Disk) -> RunIdentity | None:
    """Whose run a folder holds; None where there is none or it cannot be told."""
    try:
        content = json.loads(disk.read(folder / FILE))
        check = content.pop("check")
        identity = RunIdentity.from_json(content)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return identity if check == _check(identity) else None


def write_identity(folder: Path, disk: Disk, identity: RunIdentity) -> None:
    """Keep it, whole or not at all; raises CheckpointError."""
    content = {**identity.to_json(), "check": _check(identity)}
    partial = folder / f".{FILE}.partial"
    try:
        disk.make_folder(folder)
        disk.sync_folder(folder.parent)
        disk.write(partial, [json.dumps(content, indent=2).encode()])
        disk.rename(partial, folder / FILE)
        disk.sync_folder(folder)
    except OSError as error:
        raise CheckpointError(
            f"{folder / FILE}: cannot be written ({error.strerror or error}); make room or choose "
            "another folder with --out, and start again"
        ) from error


def _check(identity: RunIdentity) -> str:
    text = json.dumps(identity.to_json(), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
