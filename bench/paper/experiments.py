"""Changes to the engine that the study tries and the engine does not have.

Each is a context manager that patches the trainers of this process for one run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch

from celu.engine.guest_trainer import GuestTrainer
from celu.engine.host_trainer import HostTrainer
from celu.models.losses import Loss
from celu.workset.table import Entry

_Step = Callable[[Any], None]


@contextmanager
def _local_steps(change: Callable[[_Step], _Step]) -> Iterator[None]:
    """Patch the local step of both roles."""
    with (
        patch.object(GuestTrainer, "local_step", change(GuestTrainer.local_step)),
        patch.object(HostTrainer, "local_step", change(HostTrainer.local_step)),
    ):
        yield


def _frozen_accumulator(step: _Step) -> _Step:
    def changed(trainer: Any) -> None:
        before = trainer._optimizer.state()
        step(trainer)
        trainer._optimizer.restore(before)

    return changed


def _half_rate(step: _Step) -> _Step:
    def changed(trainer: Any) -> None:
        for rule in trainer._optimizer._rules:
            rule.lr *= 0.5
        step(trainer)
        for rule in trainer._optimizer._rules:
            rule.lr *= 2

    return changed


@contextmanager
def _predicted_z() -> Iterator[None]:
    """The guest's local steps use Z - gain * B dZ, with the gain that the host measures.

    The gain is that of the host's latest local step from a batch of the same age. Here it is passed
    within the process; a real run would send it.
    """
    gains: dict[int, float] = {}
    newest = 0
    host_step, guest_sample = HostTrainer._apply_stale, GuestTrainer.local_step

    def apply_stale(trainer: HostTrainer, entry: Entry) -> None:
        nonlocal newest
        newest = max(newest, entry.round)
        with torch.no_grad():
            moved_BD = trainer._forward(entry.batch) - entry.z[0]
            gradient_BD = len(moved_BD) * entry.dz[0]
            gain = -(moved_BD * gradient_BD).sum() / gradient_BD.square().sum().clamp(min=1e-30)
        gains[newest - entry.round] = float(gain)
        host_step(trainer, entry)

    def local_step(trainer: GuestTrainer) -> None:
        sample = trainer.workset.sample

        def moved() -> Entry | None:
            entry = sample()
            if entry is None:
                return None
            last = max((cached.round for cached in trainer.workset.table), default=entry.round)
            gain = gains.get(max(0, last - entry.round), 0.0)
            z = tuple(
                z_BD - gain * len(z_BD) * dz_BD
                for z_BD, dz_BD in zip(entry.z, entry.dz, strict=True)
            )
            return Entry(entry.round, entry.batch, z, entry.dz, uses=entry.uses)

        with patch.object(trainer.workset, "sample", moved):
            guest_sample(trainer)

    with (
        patch.object(HostTrainer, "_apply_stale", apply_stale),
        patch.object(GuestTrainer, "local_step", local_step),
    ):
        yield


@contextmanager
def _batch_curvature() -> Iterator[None]:
    """The guest sends the curvature of each batch also for a log loss, instead of 1."""
    with patch.object(Loss, "has_unit_curvature", lambda loss, weights_B=None: False):
        yield


EXPERIMENTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "": nullcontext,
    "cached updates do not add to the accumulator": lambda: _local_steps(_frozen_accumulator),
    "cached updates at half the rate": lambda: _local_steps(_half_rate),
    "the guest predicts how Z moved": _predicted_z,
    "the batch's curvature": _batch_curvature,
}
