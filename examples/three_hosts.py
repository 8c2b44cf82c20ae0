"""One guest with labels and features, and up to three hosts with features of the same people.

    python examples/three_hosts.py

Each host sends its own Z and receives its own dZ; no host sees another's.
"""

import torch
from torch import nn

import celu

Z_WIDTHS = {"bank": 8, "shop": 8, "telecom": 4}
TRAIN, TEST = slice(0, 5000), slice(5000, None)


class Bottom(nn.Module):
    def __init__(self, z_width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, z_width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


def main() -> None:
    random = torch.Generator().manual_seed(0)
    x = {name: torch.randn(6000, 4, generator=random) for name in ("insurer", *Z_WIDTHS)}
    y = (sum(features[:, 0] for features in x.values()) > 0).float()
    for num_hosts in range(4):
        widths = dict(list(Z_WIDTHS.items())[:num_hosts])
        torch.manual_seed(1)
        guest = celu.Guest(
            bottom=Bottom(8),
            top=celu.WideDeepTop([8, *widths.values()], hidden=(16,)),
            loss="binary",
            train=celu.Dataset({"x": x["insurer"][TRAIN]}, y[TRAIN]),
            test=celu.Dataset({"x": x["insurer"][TEST]}, y[TEST]),
        )
        hosts = {
            name: celu.Host(
                bottom=Bottom(z_width),
                train=celu.Dataset({"x": x[name][TRAIN]}),
                test=celu.Dataset({"x": x[name][TEST]}),
            )
            for name, z_width in widths.items()
        }
        job = celu.Job(
            rounds=80,
            batch_size=256,
            guest="insurer",
            hosts=widths,
            evaluation=celu.Evaluation(every=80),
        )
        result = celu.simulate(job, guest, hosts)
        print(f"with {num_hosts} hosts: AUC {result.metrics['auc']:.4f}")


if __name__ == "__main__":
    main()
