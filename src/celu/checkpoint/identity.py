"""The run that a folder belongs to: an id that all parties share, and the contract of the run.

`run.json` and every checkpoint contain it, so a damaged `run.json` can be recovered.
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
    """A run's id, and its contract as a mapping from field to value."""

    run: str
    contract: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """As stored in files."""
        return {"run": self.run, "contract": dict(self.contract)}

    @staticmethod
    def from_json(value: Any) -> RunIdentity:
        """The inverse of `to_json`; raises ValueError."""
        if not isinstance(value, dict) or value.keys() != {"run", "contract"}:
            raise ValueError("expected a run and its contract")
        if not is_run_id(value["run"]) or not isinstance(value["contract"], dict):
            raise ValueError("expected the id of a run and its contract")
        return RunIdentity(value["run"], value["contract"])


def new_run_id() -> str:
    """A random id for a new run."""
    return secrets.token_hex(_ID_DIGITS // 2)


def is_run_id(value: object) -> bool:
    """Whether a value, perhaps from a peer, is a valid run id."""
    return (
        isinstance(value, str)
        and len(value) == _ID_DIGITS
        and set(value) <= set("0123456789abcdef")
    )


def read_identity(folder: Path, disk: Disk) -> RunIdentity | None:
    """The run of a folder; None if there is none or `run.json` is damaged."""
    try:
        content = json.loads(disk.read(folder / FILE))
        check = content.pop("check")
        identity = RunIdentity.from_json(content)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return identity if check == _check(identity) else None


def write_identity(folder: Path, disk: Disk, identity: RunIdentity) -> None:
    """Write `run.json` atomically; raises CheckpointError."""
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
            f"{folder / FILE}: cannot be written ({error.strerror or error}); free some space, "
            "or choose another folder with --out, and start again"
        ) from error


def _check(identity: RunIdentity) -> str:
    text = json.dumps(identity.to_json(), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
