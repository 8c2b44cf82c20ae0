"""The audit that `party.toml` asks for: its key in the run folder, and the names of columns."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

from celu.audit.result import KEY
from celu.audit.sample import KEY_BYTES
from celu.config.party import PartySettings
from celu.data.store import open_store
from celu.engine.auditing import AuditOptions
from celu.errors import CheckpointError
from celu.run_folder import RunFolder


def audit_options(
    settings: PartySettings, folder: RunFolder, columns: Mapping[str, Sequence[str]] | None = None
) -> AuditOptions | None:
    """The audit of a run, with the key in its folder; a new run gets a new key.

    Raises CheckpointError for a damaged key.
    """
    if settings.audit is None:
        return None
    path = folder.path / KEY
    if not path.exists():
        folder.write(KEY, secrets.token_hex(KEY_BYTES) + "\n")
    return AuditOptions(settings.audit, _read_key(path), columns or {})


def check_audit_key(settings: PartySettings) -> None:
    """Raise CheckpointError for a damaged key of the run that would be resumed."""
    path = settings.run_dir / KEY
    if settings.audit is not None and path.exists():
        _read_key(path)


def _read_key(path: Path) -> bytes:
    try:
        key = bytes.fromhex(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: expected a key as celu writes it") from error
    if len(key) != KEY_BYTES:
        raise CheckpointError(f"{path}: expected a key of {KEY_BYTES} bytes, got {len(key)}")
    return key


def input_columns(settings: PartySettings) -> Mapping[str, Sequence[str]] | None:
    """The columns of each input, by name; None for a run that is not audited."""
    if settings.audit is None:
        return None
    data = settings.require_data()
    return open_store(data.store).inputs() if data.inputs is None else data.inputs
