"""A warm start: the weights that an earlier run of the same parties trained.

Each party names its own run folder. The name of the model is part of the contract, so the parties
start from parts of one model. Optimizer and workset table start new.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from celu.config.party import PartyFile
from celu.errors import ConfigError, ModelError
from celu.launch.recording import modules_of
from celu.model_identity import digest_weights, weights_of
from celu.party import Guest, Host
from celu.ranks.own_rows import OwnRows, sharded_names
from celu.serving.export import read_trained
from celu.serving.model_folder import WEIGHTS_FILE


def load_start(run: Path, name: str, party: Guest | Host) -> str:
    """Load the weights of a finished run into a party's modules; return the model's name.

    Raises ConfigError for a folder without them or of another party, ModelError for weights that
    are not those of the run, or that do not fit the modules.
    """
    identity = read_trained(run).identity
    if name not in identity.weights:
        parties = ", ".join(sorted(identity.weights))
        raise ConfigError(
            f"start: {run}: expected a run of {name}, got one of {parties}; name the folder of "
            "this party's own run"
        )
    path = run / WEIGHTS_FILE
    try:
        weights = load_file(path)  # mapped: a rank reads its rows of a table
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"start: {path}: expected the weights of a run, got: {reason}") from error
    if digest_weights(weights) != identity.weights[name]:
        raise ModelError(
            f"start: {path}: expected the weights of {name} in model {identity.name}, got others; "
            "restore the run folder"
        )
    live, shards = weights_of(modules_of(party)), sharded_names(modules_of(party))
    expected = {n: _describe(t.dtype, _shape(t, shards.get(n))) for n, t in live.items()}
    _check_fit(path, {n: _describe(t.dtype, t.shape) for n, t in weights.items()}, expected)
    weights |= {n: weights[n][own.rank :: own.num_ranks] for n, own in shards.items()}
    for which, module in modules_of(party).items():
        if module is not None:
            prefix = f"{which}."
            own = {n.removeprefix(prefix): t for n, t in weights.items() if n.startswith(prefix)}
            module.load_state_dict(own)
    return identity.name


def load_starts(files: Mapping[str, PartyFile], parties: Mapping[str, Guest | Host]) -> str | None:
    """`load_start` for all parties in one process; raises ConfigError for different models.

    Returns the model's name, or None if no party names a run to start from.
    """
    models = {
        name: None if file.settings.start is None else load_start(file.settings.start, name, party)
        for name, party in parties.items()
        if (file := files[name])
    }
    if len(set(models.values())) > 1:
        found = ", ".join(f"{name} has {model or 'none'}" for name, model in models.items())
        raise ConfigError(
            f"start: expected parts of one model at all parties, got others: {found}; name the "
            "folders of one run, or none"
        )
    return next(iter(models.values()), None)


def _check_fit(path: Path, found: Mapping[str, str], live: Mapping[str, str]) -> None:
    for name in sorted(found.keys() | live.keys()):
        expected, got = (tensors.get(name, "none") for tensors in (live, found))
        if expected != got:
            raise ModelError(
                f"start: {path}: {name}: expected {expected}, as this run's model has, got {got}; "
                "use the model and the columns of that run, or start without its weights"
            )


def _shape(tensor: Tensor, own: OwnRows | None) -> Sequence[int]:
    return tensor.shape if own is None else (own.table_rows, *tensor.shape[1:])


def _describe(dtype: torch.dtype, shape: Sequence[int]) -> str:
    return f"{dtype} of {list(shape)}"
