"""Trains a guest and a host without a link: on the ranks of torchrun, or in slices of one process.

    python tests/ranks_worker.py DEVICE OUT [SLICES]

The first rank writes what each optimizer ends with to OUT: with whole tables, and on ranks with
sharded ones, too. It imports the engine only, so that it runs on a machine
that has torch and little else.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from celu.config.job import HostTerms, Job, Method
from celu.config.optimizer import Optimizer
from celu.data.dataset import Dataset
from celu.engine.guest_trainer import GuestTrainer
from celu.engine.host_trainer import HostTrainer
from celu.model_identity import StreamedTensor
from celu.models.residual import ResidualTower
from celu.models.tops import WideDeepTop
from celu.models.tower import NewEmbedding, Tower, new_embedding
from celu.party import Guest, Host
from celu.ranks.environment import num_ranks
from celu.ranks.slices import Slices
from celu.ranks.whole import whole_weights

ROWS, BATCH, CODES, ROUNDS = 256, 64, 30, 8
TIMEOUT_S = 300.0
OPTIMIZERS = {
    "adagrad": Optimizer(initial_accumulator=0.1, weight_decay=0.01),
    "sgd": Optimizer(name="sgd", weight_decay=0.01),
    "adamw": Optimizer(name="adamw", lr=0.01),
}


@contextmanager
def slices_of(number: int) -> Iterator[Slices]:
    """The ranks of torchrun, or so many slices in this process."""
    if num_ranks() == 1:
        yield Slices(number)
        return
    from celu.ranks.group import joined

    with joined(TIMEOUT_S) as group:
        yield group


def embeddings(ranks: Slices) -> dict[str, NewEmbedding]:
    """What makes tables: whole ones, and on ranks sharded ones."""
    if len(ranks.own) == ranks.size:
        return {"whole": new_embedding}
    from celu.ranks.embedding import new_sharded
    from celu.ranks.group import Group

    assert isinstance(ranks, Group)
    return {"whole": new_embedding, "sharded": partial(new_sharded, ranks)}


def train(
    device: torch.device, ranks: Slices, new_table: NewEmbedding, optimizer: Optimizer
) -> dict[str, Tensor]:
    """Exchange rounds with local steps and an evaluation; what they end with, at the first rank."""
    torch.manual_seed(5)
    sizes = {"ids": (CODES, CODES), "bags": (CODES,)}
    data = {
        name: Dataset(
            {
                "ids": torch.randint(CODES, (ROWS, 2)),
                "numbers": torch.randn(ROWS, 3),
                "bags": torch.randint(CODES, (ROWS, 1, 4)),
            },
            torch.arange(ROWS) % 2 if name == "guest" else None,
            sizes,
        ).to(device)
        for name in ("guest", "host")
    }
    columns = {"ids": 2, "numbers": 3, "bags": 1}
    # Not a multiple of what a vector unit adds at a time: rows are at other places in a shard.
    options: dict[str, Any] = {"embedding_dim": 5, "new_embedding": new_table}
    examples = data["host"].examples()
    bottoms: dict[str, nn.Module] = {
        "guest": Tower(8, columns, sizes, hidden=(16,), **options).to(device),
        "host": ResidualTower(8, columns, sizes, examples, bins=4, width=8, **options).to(device),
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
        optimizer=optimizer,
    )
    there = HostTrainer("host", host, job, ranks=ranks)
    here = GuestTrainer("guest", guest, job, ranks=ranks)
    for round_ in range(ROUNDS):
        _, (derivative,) = here.compute_derivatives(round_, [there.compute_activation(round_)])
        here.apply_update()
        there.update(round_, derivative)
        for trainer in (here, there):
            trainer.local_step()
    held_out = there.compute_test_activation("test", ROUNDS, 0, 0, 1)  # fewer rows than ranks
    found = {"output": here.score("test", 0, 1, [held_out]).output}
    found["mean Z"] = there.mean_activation()
    weights = whole_weights({**bottoms, "top": top}, ranks)
    return found | {
        name: torch.cat(list(tensor.parts())) if isinstance(tensor, StreamedTensor) else tensor
        for name, tensor in weights.items()
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    with slices_of(int(sys.argv[3]) if len(sys.argv) > 3 else 1) as used:
        ended = {
            f"{tables}: {kind}: {name}": tensor.contiguous()
            for tables, new_table in embeddings(used).items()
            for kind, settings in OPTIMIZERS.items()
            for name, tensor in train(torch.device(sys.argv[1]), used, new_table, settings).items()
        }
        if used.is_first:
            save_file(ended, sys.argv[2])
