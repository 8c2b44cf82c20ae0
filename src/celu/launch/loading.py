"""A party's rows and modules, from the files that `party.toml` names."""

from __future__ import annotations

from pathlib import Path

import torch

from celu.config.job import Job
from celu.config.party import PartySettings
from celu.data.alignment import read_alignment
from celu.data.dataset import Dataset
from celu.data.memory_map import StoreDatasets, open_datasets
from celu.data.store import open_store
from celu.engine.randomness import seed_step
from celu.errors import ConfigError, DataError
from celu.models.building import BOTTOMS, TOPS, build_module, find_loss
from celu.party import Guest, Host


def load_party(
    settings: PartySettings, job: Job, folder: Path, datasets: StoreDatasets | None = None
) -> Host | Guest:
    """Build a party's modules and open its rows, unless `datasets` are given.

    Python searches `folder` first when it imports the user's modules. The initial weights depend
    on (seed, party) only, so that runs are reproducible bit for bit. Raises ConfigError, DataError,
    AlignmentError or ModelError.
    """
    device = find_device(settings.device)
    datasets = datasets or read_datasets(settings)
    train, test = (_to_device(rows, job, device) for rows in (datasets.train, datasets.test))
    model = settings.require_model()
    guest_width = model.z_width or next((h.z_width for h in job.hosts.values()), 64)
    own_width = job.hosts[settings.name].z_width if settings.role == "host" else guest_width
    seed_step(job.seed, settings.name, 0, 0)
    bottom = None
    if model.bottom is not None:
        facts = {
            "z_width": own_width,
            "columns": {name: t.shape[1] for name, t in train.inputs.items()},
            "sizes": train.sizes,
        }
        bottom = build_module(
            model.bottom.use,
            model.bottom.options,
            facts,
            built_in=BOTTOMS,
            what="model.bottom",
            folder=folder,
        ).to(device)
    if settings.role == "host":
        assert bottom is not None  # PartySettings checks this
        return Host(bottom=bottom, train=train, test=test)
    assert model.top is not None and model.loss is not None  # likewise for a guest
    widths = ([guest_width] if bottom is not None else []) + [h.z_width for h in job.hosts.values()]
    top = build_module(
        model.top.use,
        model.top.options,
        {"z_widths": widths},
        built_in=TOPS,
        what="model.top",
        folder=folder,
    ).to(device)
    return Guest(bottom=bottom, top=top, loss=find_loss(model.loss, folder), train=train, test=test)


def read_datasets(settings: PartySettings) -> StoreDatasets:
    """A party's training and test rows, in main memory; raises DataError, AlignmentError."""
    data = settings.require_data()
    store = open_store(data.store)
    alignment = None if data.alignment is None else read_alignment(data.alignment, store)
    inputs = store.inputs() if data.inputs is None else data.inputs
    if settings.require_model().bottom is None:
        inputs = {}
    elif not inputs:
        raise DataError(f"{data.store}: expected features for the bottom model, got none")
    return open_datasets(store, inputs, label=settings.role == "guest", alignment=alignment)


def find_device(name: str) -> torch.device:
    """The torch device with this name; raises ConfigError if it is not available."""
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device {name!r} is not available: {reason}") from error
    return device


def _to_device(dataset: Dataset, job: Job, device: torch.device) -> Dataset:
    """Move all rows to the GPU if they fit beside the models; else each batch is copied there."""
    if device.type != "cuda" or job.order.shuffle == "blocks":
        return dataset
    free, _ = torch.cuda.mem_get_info(device)
    return dataset.to(device) if dataset.num_bytes < free // 3 else dataset
