"""Your own sampling policy for local steps, compared with round-robin.

    python examples/own_sampler.py

A policy is any class with a method `choose`. In job.toml: sampling = "own_sampler:NewestFirst".
"""

from collections.abc import Sequence

import torch

import celu


class NewestFirst:
    """Choose the newest cached batch, unless the previous local step used it."""

    def choose(self, entries: Sequence[celu.Entry], step: int, W: int) -> celu.Entry | None:
        return next((e for e in reversed(entries) if step - e.used_at > 1), None)


def main() -> None:
    random = torch.Generator().manual_seed(0)
    x_guest = torch.randn(12_000, 8, generator=random)
    x_host = torch.randn(12_000, 8, generator=random)
    y = ((x_guest * x_host).sum(dim=1) + 2 * x_host[:, 0] > 0).float()
    train, test = slice(0, 10_000), slice(10_000, None)
    for sampling in ("round-robin", f"{__name__}:NewestFirst"):
        torch.manual_seed(1)
        guest = celu.Guest(
            bottom=celu.Tower(32, {"x": 8}, {}, hidden=(32,)),
            top=celu.WideDeepTop([32, 32], hidden=(32,)),
            loss="binary",
            train=celu.Dataset({"x": x_guest[train]}, y[train]),
            test=celu.Dataset({"x": x_guest[test]}, y[test]),
        )
        host = celu.Host(
            bottom=celu.Tower(32, {"x": 8}, {}, hidden=(32,)),
            train=celu.Dataset({"x": x_host[train]}),
            test=celu.Dataset({"x": x_host[test]}),
        )
        job = celu.Job(
            rounds=200,
            batch_size=256,
            hosts={"host": 32},
            method=celu.Method(W=5, R=5, xi=60, sampling=sampling),
            evaluation=celu.Evaluation(every=50),
        )
        result = celu.simulate(job, guest, {"host": host})
        steps = f"{result.local_steps} local steps, {result.bubbles} bubbles"
        print(f"{sampling}: AUC {result.metrics['auc']:.4f} ({steps})")


if __name__ == "__main__":
    main()
