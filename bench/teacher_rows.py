"""Rows in any number, whose labels a trained model draws: to see what a defence costs at scale.

The features are those of real rows, drawn with replacement; each draw gets a new label. So the
number of different ids does not grow with the number of rows, as it would in real data.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

import celu
from bench.privacy_runs import Defence, Modules, Pair, Rows, open_sample, train

_CHUNK = 8192
TEST_ROWS = 200_000


class Teacher:
    """A model that one epoch of real rows has trained."""

    def __init__(self, pair: Pair, modules: Modules) -> None:
        self._pair = pair
        self._modules = modules

    @classmethod
    def trained(cls, pair: Pair, seed: int) -> Teacher:
        """Train a teacher."""
        modules = Modules.of(pair, seed)
        train(pair, Defence("none"), seed, pair.rounds_per_epoch, modules=modules)
        return cls(pair, modules)

    def save(self, path: Path) -> Path:
        """Write the weights, for `open_teacher` in another process."""
        torch.save([module.state_dict() for module in self._modules.all()], path)
        return path

    def rows(self, num_rows: int, seed: int) -> Pair:
        """Training rows from the real training rows, test rows from the real test rows."""
        random = torch.Generator().manual_seed(seed)
        guest, host = self._pair.guest, self._pair.host
        train_guest, train_host = self._draw(guest.train, host.train, num_rows, random)
        test_guest, test_host = self._draw(guest.test, host.test, TEST_ROWS, random)
        return Pair(Rows(train_guest, test_guest), Rows(train_host, test_host))

    def _draw(
        self, guest: celu.Dataset, host: celu.Dataset, num_rows: int, random: torch.Generator
    ) -> tuple[celu.Dataset, celu.Dataset]:
        p_M = self._probabilities(guest, host)
        drawn_N = torch.randint(0, len(p_M), (num_rows,), generator=random)
        labels_N = (torch.rand(num_rows, generator=random) < p_M[drawn_N]).float()

        def inputs(rows: celu.Dataset) -> dict[str, Tensor]:
            return {name: tensor[drawn_N] for name, tensor in rows.inputs.items()}

        return (
            celu.Dataset(inputs(guest), labels_N, sizes=guest.sizes),
            celu.Dataset(inputs(host), sizes=host.sizes),
        )

    def _probabilities(self, guest: celu.Dataset, host: celu.Dataset) -> Tensor:
        modules = self._modules
        parts = []
        with torch.no_grad():
            for start in range(0, guest.num_rows, _CHUNK):
                rows = slice(start, start + _CHUNK)
                z = (
                    modules.guest(**{n: t[rows] for n, t in guest.inputs.items()}),
                    modules.host(**{n: t[rows] for n, t in host.inputs.items()}),
                )
                parts.append(modules.top(*z).reshape(-1).sigmoid())
        return torch.cat(parts)


def open_teacher(folder: Path, weights: Path) -> Teacher:
    """The teacher of a prepared sample with saved weights."""
    pair = open_sample(folder)
    modules = Modules.of(pair, 0)
    for module, state in zip(modules.all(), torch.load(weights, weights_only=True), strict=True):
        module.load_state_dict(state)
    return Teacher(pair, modules)
