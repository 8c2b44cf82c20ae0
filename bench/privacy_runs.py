"""Training runs for `scripts/bench privacy`: a guest and a host, a defence, and the guest's audit.

The guest has Criteo's numbers and the labels, the host its ids. All runs share modules, optimizer
and settings, which were chosen without a defence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import celu
from bench.samples import prepare_sample
from celu.audit.sample import KEY_BYTES
from celu.config.audit import AuditSettings
from celu.config.privacy import GaussianNoise, MarvellNoise, Privacy
from celu.config.schema import Split
from celu.engine.auditing import AuditOptions
from celu.models.tops import WideDeepTop
from celu.models.tower import Tower
from celu.simulation import simulate_all

BATCH, WIDTH, EMBEDDING, HIDDEN, INIT = 512, 64, 8, 64, 0.1
OPTIMIZER = celu.Optimizer(name="adagrad", lr=0.02, initial_accumulator=0.0)
AUDITED = 20_000  # rows
KEY = b"the key of a measurement, no secret"


@dataclass(frozen=True)
class Rows:
    """The training and test rows of one party."""

    train: celu.Dataset
    test: celu.Dataset


@dataclass(frozen=True)
class Pair:
    """The rows of both parties."""

    guest: Rows
    host: Rows

    @property
    def rounds_per_epoch(self) -> int:
        """Rounds in which every training row is exposed once."""
        return self.guest.train.num_rows // BATCH

    def swapped(self) -> Pair:
        """The labels and the host's columns at the guest, the guest's columns at the host."""

        def rows(columns: celu.Dataset, labels: celu.Dataset | None) -> celu.Dataset:
            own = None if labels is None else labels.labels
            return celu.Dataset(dict(columns.inputs), own, sizes=columns.sizes)

        guest, host = self.guest, self.host
        return Pair(
            Rows(rows(host.train, guest.train), rows(host.test, guest.test)),
            Rows(rows(guest.train, None), rows(guest.test, None)),
        )


@dataclass(frozen=True)
class Defence:
    """A name for the table, the contract's defences, and the width of Z."""

    name: str
    label_epsilon: float | None = None
    dz_noise: GaussianNoise | MarvellNoise | None = None
    z_noise: GaussianNoise | None = None
    width: int = WIDTH


def read_sample(data: Path, folder: Path) -> Pair:
    """Prepare the Criteo sample in an empty folder and read it; raises DataError."""
    prepare_sample(folder, "criteo", data, Split())
    return open_sample(folder)


def open_sample(folder: Path) -> Pair:
    """Read the sample that `read_sample` has prepared in this folder."""
    guest, host = (_read(folder / party / "store", party == "guest") for party in ("guest", "host"))
    return Pair(guest, host)


def _read(store: Path, has_label: bool) -> Rows:
    opened = celu.open_store(store)
    rows = celu.open_datasets(opened, opened.inputs(), label=has_label)
    return Rows(rows.train, rows.test)


@dataclass(frozen=True)
class Modules:
    """New modules of both parties; they depend on the seed only."""

    guest: Tower
    host: Tower
    top: WideDeepTop

    @classmethod
    def of(cls, pair: Pair, seed: int, width: int = WIDTH) -> Modules:
        """Modules for these rows, with a host's Z of this width."""
        torch.manual_seed(seed)

        def tower(rows: Rows, width: int) -> Tower:
            columns = {name: t.shape[1] for name, t in rows.train.inputs.items()}
            return Tower(
                width,
                columns,
                rows.train.sizes,
                embedding_dim=EMBEDDING,
                hidden=(HIDDEN,),
                init_std=INIT,
            )

        top = WideDeepTop((WIDTH, width), hidden=(HIDDEN,), init_std=INIT)
        return cls(tower(pair.guest, WIDTH), tower(pair.host, width), top)

    def all(self) -> tuple[nn.Module, ...]:
        """All modules, in a fixed order."""
        return (self.guest, self.host, self.top)

    def to(self, device: str) -> Modules:
        """The same modules, moved to a device."""
        for module in self.all():
            module.to(device)
        return self


def train(
    pair: Pair,
    defence: Defence,
    seed: int,
    rounds: int,
    *,
    batch: int = BATCH,
    method: Mapping[str, Any] | None = None,
    optimizer: celu.Optimizer = OPTIMIZER,
    modules: Modules | None = None,
    **options: Any,
) -> dict[str, celu.Result]:
    """Train without local steps, or with a `method`; the results of both parties.

    `options` are those of `celu.simulate`.
    """
    method = {"R": 1} if method is None else method
    modules = modules or Modules.of(pair, seed, defence.width)
    job = celu.Job(
        seed=seed,
        rounds=rounds,
        batch_size=batch,
        hosts={"host": celu.HostTerms(z_width=defence.width)},
        method=celu.Method(**method),
        optimizer=optimizer,
        evaluation=celu.Evaluation(every=rounds),
        privacy=Privacy(
            label_epsilon=defence.label_epsilon,
            dz_noise=defence.dz_noise,
            z_noise=defence.z_noise,
        ),
    )
    guest = celu.Guest(
        bottom=modules.guest,
        top=modules.top,
        loss="binary",
        train=pair.guest.train,
        test=pair.guest.test,
        label_key=KEY,
        noise_key=KEY,
    )
    host = celu.Host(bottom=modules.host, train=pair.host.train, test=pair.host.test, noise_key=KEY)
    return simulate_all(job, guest, {"host": host}, **options)


def audit_options(seed: int, exposures: int) -> AuditOptions:
    """An audit of a run in which each row is exposed this often."""
    return AuditOptions(AuditSettings(rows=AUDITED, exposures=exposures), _audit_key(seed))


def _audit_key(seed: int) -> bytes:
    return seed.to_bytes(KEY_BYTES, "little")
