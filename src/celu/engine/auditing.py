"""How a session is audited: which rows it records, and what is attacked at its end."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from celu.audit.canaries import random_labels
from celu.audit.columns import audit_columns
from celu.audit.labels import audit_labels
from celu.audit.recorder import Recorder
from celu.audit.result import Audit
from celu.audit.sample import RowSample
from celu.config.audit import AuditSettings
from celu.config.job import Job
from celu.data.dataset import Dataset
from celu.party import Guest, Host


@dataclass(frozen=True)
class AuditOptions:
    """A party's settings, its private key, and the names of the columns of each input."""

    settings: AuditSettings
    key: bytes = field(repr=False)
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def recorder(self, train: Dataset) -> Recorder:
        """A recorder of a sample of the training rows; canaries are among them at a guest."""
        canaries = self.settings.canaries if train.labels is not None else 0
        sample = RowSample(train, self.key, self.settings.rows, canaries)
        return Recorder(sample, self.settings.exposures)

    def of_guest(self, name: str, guest: Guest, job: Job, recorder: Recorder) -> Audit:
        """Attack the labels of a guest that has trained, with its canaries."""
        labels = guest.train.labels
        assert labels is not None  # checked before the run starts
        rows = torch.from_numpy(recorder.sample.row_numbers).to(labels.device)
        held_out = recorder.held_out("labels")
        return audit_labels(
            name,
            recorder,
            list(job.hosts),
            guest.loss.prediction,
            guest.label_map.codes(labels[rows]),
            None if held_out is None else held_out[:, 0],
        )

    def of_host(self, name: str, host: Host, recorder: Recorder) -> Audit:
        """Decode the columns of a host that has trained."""
        batch = host.train.take(torch.from_numpy(recorder.sample.row_numbers))
        return audit_columns(name, recorder, batch.inputs, host.train.sizes, self.columns)


def with_canaries(guest: Guest, sample: RowSample) -> Guest:
    """The guest with random labels for the canaries of a sample, if it has any.

    With label privacy they are randomized as the true labels would be, so an audit is no release of
    its own: a label drawn uniformly hides whether it was changed.
    """
    train = guest.train
    if not sample.num_canaries or train.labels is None or train.labels.dim() != 1:
        return guest
    labels = random_labels(sample, train.labels, guest.loss.prediction)
    changed = copy.copy(guest)  # with the same labelled rows
    object.__setattr__(changed, "train", train.with_labels(labels, train.classes))
    return changed
