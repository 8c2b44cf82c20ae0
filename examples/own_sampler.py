"""A researcher's own sampling policy against round-robin, on synthetic clicks.

python examples/own_sampler.py
"""

from collections.abc import Sequence

import torch

import celu
from celu.data.clicks import click_chunk, field_sizes
from celu.models.tops import WideDeepTop
from celu.models.tower import Tower
from celu.workset.table import Entry


class NewestTwice:
    """Draw the newest cached batch, unless the step before drew it."""

    def choose(self, entries: Sequence[Entry], step: int, W: int) -> Entry | None:
        return next((e for e in reversed(entries) if step - e.used_at > 1), None)


def parties() -> tuple[celu.Guest, celu.Host]:
    clicks = click_chunk("criteo", seed=1, chunk=0, rows=40_000, max_codes=100)
    numbers = torch.stack([torch.from_numpy(c) for c in clicks.guest.values()], dim=1)
    ids = torch.stack([torch.from_numpy(c).long() for c in clicks.host.values()], dim=1)
    labels = torch.from_numpy(clicks.label)
    sizes = {"ids": tuple(field_sizes("criteo", max_codes=100)["host"].values())}
    train, test = slice(0, 32_000), slice(32_000, None)
    torch.manual_seed(1)
    guest = celu.Guest(
        top=WideDeepTop([32, 32]),
        loss=celu.LOSSES["binary"],
        train=celu.Dataset({"numbers": numbers[train]}, labels[train]),
        test=celu.Dataset({"numbers": numbers[test]}, labels[test]),
        bottom=Tower(32, {"numbers": 13}, {}, hidden=(32,)),
    )
    host = celu.Host(
        bottom=Tower(32, {"ids": 26}, sizes, embedding_dim=8, hidden=(32,)),
        train=celu.Dataset({"ids": ids[train]}, None, sizes),
        test=celu.Dataset({"ids": ids[test]}, None, sizes),
    )
    return guest, host


def main() -> None:
    for sampling in ("round-robin", f"{__name__}:NewestTwice"):
        job = celu.Job(
            rounds=100,
            batch_size=512,
            hosts={"host": celu.HostTerms(z_width=32)},
            method=celu.Method(W=5, R=5, xi=60, sampling=sampling),
            optimizer=celu.Optimizer(lr=0.2, initial_accumulator=0.1),
            evaluation=celu.Evaluation(every=50),
        )
        guest, host = parties()
        result = celu.simulate(job, guest, {"host": host})
        steps = f"{result.local_steps} local steps, {result.bubbles} bubbles"
        print(f"{sampling}: AUC {result.evaluations[-1]['auc']:.4f} ({steps})")


if __name__ == "__main__":
    main()
