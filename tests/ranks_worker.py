"""Trains a guest and a host without a link: on the ranks of torchrun, or in slices of one process.

    python tests/ranks_worker.py DEVICE OUT [SLICES]

The first rank writes all weights to OUT. It imports the engine only, so that it runs on a machine
that has torch and little else.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from safetensors.torch import save_file
from torch import Tensor

from celu.config.job import HostTerms, Job, Method
from celu.data.dataset import Dataset
from celu.engine.guest_trainer import GuestTrainer
from celu.engine.host_trainer import HostTrainer
from celu.models.tops import WideDeepTop
from celu.models.tower import Tower
from celu.party import Guest, Host
from celu.ranks.environment import num_ranks
from celu.ranks.slices import Slices

ROWS, BATCH, CODES, ROUNDS = 256, 64, 30, 8
TIMEOUT_S = 300.0


@contextmanager
def slices_of(number: int) -> Iterator[Slices]:
    """The ranks of torchrun, or so many slices in this process."""
    if num_ranks() == 1:
        yield Slices(number)
        return
    from celu.ranks.group import joined

    with joined(TIMEOUT_S) as group:
        yield group


def train(device: torch.device, ranks: Slices) -> dict[str, Tensor]:
    """Exchange rounds with local steps; returns all weights."""
    torch.manual_seed(5)
    sizes = {"ids": (CODES, CODES)}
    data = {
        name: Dataset(
            {"ids": torch.randint(CODES, (ROWS, 2)), "numbers": torch.randn(ROWS, 3)},
            torch.arange(ROWS) % 2 if name == "guest" else None,
            sizes,
        ).to(device)
        for name in ("guest", "host")
    }
    columns = {"ids": 2, "numbers": 3}
    bottoms = {
        name: Tower(8, columns, sizes, embedding_dim=4, hidden=(16,)).to(device) for name in data
    }
    top = WideDeepTop([8, 8], 1).to(device)
    host = Host(bottom=bottoms["host"], train=data["host"], test=data["host"])
    guest = Guest(
        bottom=bottoms["guest"],
        top=top,
        loss="binary",
        train=data["guest"],
        test=data["guest"],
    )
    job = Job(
        seed=2,
        batch_size=BATCH,
        rounds=ROUNDS,
        guest="guest",
        hosts={"host": HostTerms(z_width=8)},
        method=Method(W=3, R=3),
    )
    there = HostTrainer("host", host, job, ranks=ranks)
    here = GuestTrainer("guest", guest, job, ranks=ranks)
    for round_ in range(ROUNDS):
        _, (derivative,) = here.compute_derivatives(round_, [there.compute_activation(round_)])
        here.apply_update()
        there.update(round_, derivative)
        for trainer in (here, there):
            trainer.local_step()
    return {
        f"{which}.{name}": tensor.cpu()
        for which, module in {**bottoms, "top": top}.items()
        for name, tensor in module.state_dict().items()
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    with slices_of(int(sys.argv[3]) if len(sys.argv) > 3 else 1) as used:
        weights = train(torch.device(sys.argv[1]), used)
        if used.is_first:
            save_file(weights, sys.argv[2])
