"""What all ranks of a party must have alike: the settings, the contract, the store.

Each machine may have copies of the files. Ranks with different ones would train a model that is
neither's, or wait for each other forever. A rank compares its own with the first one's, and names
what differs at all of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from celu.config.job import Job
from celu.config.party import PartySettings
from celu.data.dataset import Dataset
from celu.data.memory_map import StoreDatasets
from celu.errors import CeluError, ConfigError, DataError
from celu.ranks.slices import Slices

# Settings that may differ between ranks: those of a machine, and of what only rank 0 does.
# `slices` and `audit` are checked by each rank, and the content of `data` and `start` is compared.
OF_A_RANK = {
    *("peers", "keys", "listen", "carrier", "gateway", "insecure", "link", "serve"),
    *("connect_s", "deadline_s", "outage_s", "heartbeat_s"),
    *("device", "threads", "slices", "graphs"),
    *("run_dir", "privacy", "tracking", "audit", "data", "start"),
}
_SAMPLES, _SAMPLE_ROWS = 64, 1024  # of an input: blocks of rows, since a store may be huge


def check_same_settings(ranks: Slices, settings: PartySettings, job: Job, more: int) -> None:
    """Raise ConfigError, at all ranks, for settings or a contract other than the first rank's.

    `more` is the option --more.
    """
    if len(ranks.own) == ranks.size:
        return
    own = _settings(settings, job, more)
    expected: dict[str, dict[str, str]] = ranks.share(lambda: own)
    problem = None
    for file, facts in own.items():
        if problem is None:
            problem = _differing_setting(file, facts, expected[file], ranks.own.start)
    _raise_at_all(ranks, problem)


def check_same_store(ranks: Slices, settings: PartySettings, datasets: StoreDatasets) -> None:
    """Raise DataError, at all ranks, for a store or an alignment other than the first rank's.

    Ids, labels and weights are compared in full, of the inputs some rows.
    """
    if len(ranks.own) == ranks.size:
        return
    own = _rows(datasets)
    expected: dict[str, str] = ranks.share(lambda: own)
    problem = None
    for what in own | expected:
        if problem is None and own.get(what) != expected.get(what):
            problem = DataError(
                f"{settings.require_data().store}: expected the store of the first rank at rank "
                f"{ranks.own.start}, got another: {what} differ; copy the store, and the alignment "
                "if there is one, from the first rank's machine"
            )
    _raise_at_all(ranks, problem)


def _raise_at_all(ranks: Slices, problem: CeluError | None) -> None:
    """Raise a rank's problem there, and at all others before they wait for anything else."""
    if problem is not None:
        raise problem
    ranks.any(False)  # another rank's problem is raised here


def _settings(settings: PartySettings, job: Job, more: int) -> dict[str, dict[str, str]]:
    """What must agree, by file and by dotted key, as JSON."""
    values = settings.model_dump(mode="json", exclude=OF_A_RANK)
    inputs = None if settings.data is None else settings.data.inputs
    start = None if settings.start is None else "a run"
    party = {**_flat(values), "data.inputs": inputs, "start": start}
    found = {
        "party.toml": {key: value for key, value in party.items() if value is not None},
        "job.toml": job.contract(),
        "the command line": {"--more": more} if more else {},
    }
    return {
        file: {key: json.dumps(value, sort_keys=True) for key, value in values.items()}
        for file, values in found.items()
    }


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _differing_setting(
    file: str, own: Mapping[str, str], expected: Mapping[str, str], rank: int
) -> ConfigError | None:
    for key in sorted(own.keys() | expected.keys()):
        if own.get(key) != expected.get(key):
            return ConfigError(
                f"{file}: {key}: expected {_shown(expected, key)} at rank {rank}, as at rank 0, "
                f"got {_shown(own, key)}; use the same {file} on all machines of this party"
            )
    return None


def _shown(values: Mapping[str, str], key: str) -> str:
    return values.get(key, "none")[:100]


def _rows(datasets: StoreDatasets) -> dict[str, str]:
    """What the ranks compare of their stores, by what it is."""
    found = {"schema.json and its columns": datasets.schema.digest()}
    for part, rows in datasets.parts.items():
        found[f"the numbers of {part} rows"] = str(rows.num_rows)
        found[f"the ids of {part} rows, or their order,"] = rows.commitment
        found |= {f"{what} of {part} rows": digest for what, digest in _values(rows).items()}
    return found


def _values(rows: Dataset) -> dict[str, str]:
    found = {}
    for what, whole in (("the labels", rows.labels), ("the weights", rows.weights)):
        if whole is not None:
            found[what] = _digest(whole, rows.num_rows)
    for name, tensor in rows.inputs.items():
        found[f"the inputs {name!r}"] = _digest(tensor, _SAMPLE_ROWS)
    return found


def _digest(tensor: Tensor, block: int) -> str:
    """The digest of up to `_SAMPLES` evenly spaced blocks of rows, with the first and the last."""
    hashed = hashlib.blake2b(f"{tensor.dtype} {list(tensor.shape)}".encode(), digest_size=16)
    last = max(0, len(tensor) - block)
    starts = {last * k // (_SAMPLES - 1) for k in range(_SAMPLES)}
    for start in sorted(starts):
        hashed.update(tensor[start : start + block].numpy().tobytes())
    return hashed.hexdigest()
