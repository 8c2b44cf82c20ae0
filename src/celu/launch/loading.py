"""A party's rows and modules, from the files that `party.toml` names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from celu.config.job import Job
from celu.config.party import ModelSpec, PartyFile, PartySettings
from celu.data.alignment import read_alignment
from celu.data.dataset import Dataset
from celu.data.memory_map import StoreDatasets, open_datasets
from celu.data.row_ids import read_ids
from celu.data.store import open_store
from celu.data.tags import Tags
from celu.engine.device import find_device
from celu.engine.lazy_modules import initialize_lazy_modules
from celu.engine.randomness import seed_step
from celu.errors import DataError, ModelError
from celu.models.building import build_bottom, build_top, find_loss, find_metrics
from celu.models.fit_labels import fit_label_map
from celu.models.losses import Loss
from celu.models.tower import new_embedding
from celu.party import Guest, Host
from celu.privacy.secret_key import LABELS, NOISE, KeyUse

if TYPE_CHECKING:
    from celu.launch.sharding import Sharding  # torch.distributed takes a while to import


def load_party(
    settings: PartySettings,
    job: Job,
    folder: Path,
    datasets: StoreDatasets | None = None,
    sharding: Sharding | None = None,
) -> Host | Guest:
    """Build a party's modules and open its rows, unless `datasets` are given.

    Python searches `folder` first when it imports the user's modules. The initial weights depend
    on (seed, party) only, so that runs are reproducible bit for bit; `sharding` decides which rows
    of embedding tables this rank has. Raises ConfigError, DataError, AlignmentError or ModelError.
    """
    device = find_device(settings.device)
    datasets = datasets or read_datasets(settings)
    train, test = (_to_device(rows, job, device) for rows in (datasets.train, datasets.test))
    validation = datasets.validation
    validation = None if validation is None else _to_device(validation, job, device)
    model = settings.require_model()
    own_width = settings.own_width(job)
    if sharding is not None:
        sharding.start()  # a party that starts over, because a peer did, builds the same again
    seed_step(job.seed, settings.name, 0, 0)
    bottom = None
    if model.bottom is not None:
        bottom = build_bottom(
            model.bottom.use,
            model.bottom.options,
            z_width=own_width,
            columns={name: t.shape[1] for name, t in train.inputs.items()},
            sizes=train.sizes,
            examples=train.examples(),
            new_embedding=new_embedding if sharding is None else sharding.new_embedding,
            folder=folder,
        )
    if settings.role == "host":
        assert bottom is not None  # PartySettings checks this
        if sharding is not None:
            sharding.shard({"bottom": bottom})
        host = Host(
            bottom=bottom.to(device),
            train=train,
            test=test,
            validation=validation,
            noise_key=_key(settings, NOISE),
        )
        initialize_lazy_modules(settings.name, host, job)  # before weights are loaded or compared
        return host
    assert model.top is not None and model.loss is not None  # likewise for a guest
    widths = ([own_width] if bottom is not None else []) + [h.z_width for h in job.hosts.values()]
    loss, metrics = find_loss(model.loss, folder), model.metrics
    top = build_top(
        model.top.use,
        model.top.options,
        z_widths=widths,
        num_classes=_num_classes(settings, loss, model.top, datasets),
        folder=folder,
    )
    if sharding is not None:
        sharding.shard({"top": top} if bottom is None else {"bottom": bottom, "top": top})
    with _naming_label(settings, datasets):
        guest = Guest(
            bottom=None if bottom is None else bottom.to(device),
            top=top.to(device),
            loss=loss,
            train=train,
            test=test,
            validation=validation,
            metrics=None if metrics is None else find_metrics(metrics, "model.metrics", folder),
            class_weights=model.class_weights,
            label_key=_key(settings, LABELS),
            noise_key=_key(settings, NOISE),
        )
    initialize_lazy_modules(settings.name, guest, job)
    return guest if settings.data is None else guest.of_store(open_store(settings.data.store))


@contextmanager
def _naming_label(settings: PartySettings, datasets: StoreDatasets) -> Iterator[None]:
    """Name store and column in an error about the labels, which are arrays to the guest."""
    try:
        yield
    except DataError as error:
        store, column = settings.require_data().store, datasets.schema.label
        raise DataError(f"{store}: column {column!r}: {error}") from error


def _key(settings: PartySettings, use: KeyUse) -> Path | None:
    """The file of a key, beside the party's store; it is created when it is first needed."""
    return None if settings.data is None else settings.data.store.parent / use.file


def load_parties(
    files: Mapping[str, PartyFile], job: Job, datasets: Mapping[str, StoreDatasets]
) -> tuple[Guest, dict[str, Host]]:
    """The guest and the hosts of a job, with new modules; raises as `load_party` does."""
    loaded = {
        name: load_party(file.settings, job, file.folder, datasets[name])
        for name, file in files.items()
    }
    guest = loaded.pop(job.guest)
    assert isinstance(guest, Guest)  # check_names has compared the roles
    return guest, {name: party for name, party in loaded.items() if isinstance(party, Host)}


def _num_classes(
    settings: PartySettings, loss: Loss, top: ModelSpec, datasets: StoreDatasets
) -> int | None:
    """How many outputs a top needs, if it is one for each class.

    Raises ModelError if its setting `outputs` is another number.
    """
    train, others = datasets.train, {"test": datasets.test, "validation": datasets.validation}
    if loss.labels != "multiclass" or train.labels is None:
        return None
    held_out = {p: d.labels for p, d in others.items() if d is not None and d.labels is not None}
    with _naming_label(settings, datasets):
        classes = fit_label_map(loss, train.labels, held_out, train.classes).classes or []
    given = top.options.get("outputs")
    has_names = bool(classes) and isinstance(classes[0], str)
    if isinstance(given, int) and (given < len(classes) or (has_names and given > len(classes))):
        raise ModelError(
            f"model.top: outputs: expected {len(classes)}, one for each class of the labels, got "
            f"{given}; leave it out, and it follows from the labels"
        )
    return len(classes)


def read_datasets(settings: PartySettings) -> StoreDatasets:
    """A party's training and test rows, in main memory; raises DataError, AlignmentError."""
    data = settings.require_data()
    store = open_store(data.store)
    alignment = None if data.alignment is None else read_alignment(data.alignment, store)
    inputs = store.inputs() if data.inputs is None else data.inputs
    ignored = {}
    if settings.require_model().bottom is None:
        ignored, inputs = inputs, {}
    elif not inputs:
        raise DataError(f"{data.store}: expected features for the bottom model, got none")
    datasets = open_datasets(store, inputs, label=settings.role == "guest", alignment=alignment)
    if not ignored:
        return datasets
    num_columns = len({column for columns in ignored.values() for column in columns})
    warning = (
        f"{data.store}: its columns of features ({num_columns:,}) are not used, since [model] has "
        "no bottom; add one in party.toml, or prepare a store of ids and labels"
    )
    return replace(datasets, warnings=[*datasets.warnings, warning])


def _to_device(dataset: Dataset, job: Job, device: torch.device) -> Dataset:
    """Move all rows to the GPU if they fit beside the models; else each batch is copied there."""
    if device.type != "cuda" or job.order.shuffle == "blocks":
        return dataset
    free, _ = torch.cuda.mem_get_info(device)
    return dataset.to(device) if dataset.num_bytes < free // 3 else dataset


def test_ids(settings: PartySettings, tags: Tags) -> Any:
    """The ids of a party's first test rows, which have these tags; raises DataError."""
    data = settings.require_data()
    store = open_store(data.store)
    alignment = None if data.alignment is None else read_alignment(data.alignment, store)
    return read_ids(store, "test", alignment, tags)
