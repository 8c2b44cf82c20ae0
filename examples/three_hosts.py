"""One guest with labels and features, three hosts with features of the same people.

    python examples/three_hosts.py

Each host sends its own Z and gets its own dZ; no host sees another's.
"""

import torch
from torch import Tensor, nn

import celu

WIDTHS = {"bank": 8, "shop": 8, "telecom": 4}  # of each host's Z, as the contract says


class Top(nn.Module):  # the guest's Z first, then the hosts' in the contract's order
    def __init__(self, z_widths: list[int]) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(sum(z_widths), 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, *z: Tensor) -> Tensor:
        return self.net(torch.cat(z, dim=1))


class Bottom(nn.Module):
    def __init__(self, z_width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, z_width))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def main() -> None:
    random = torch.Generator().manual_seed(0)
    x = {name: torch.randn(6000, 4, generator=random) for name in ("insurer", *WIDTHS)}
    label = (sum(column[:, 0] for column in x.values()) > 0).float()
    train, test = slice(0, 5000), slice(5000, None)
    for names in ([], ["bank"], ["bank", "shop"], list(WIDTHS)):
        torch.manual_seed(1)
        job = celu.Job(
            rounds=80,
            batch_size=256,
            guest="insurer",
            hosts={name: celu.HostTerms(z_width=WIDTHS[name]) for name in names},
            evaluation=celu.Evaluation(every=80),
        )
        guest = celu.Guest(
            top=Top([8, *(WIDTHS[name] for name in names)]),
            loss=celu.LOSSES["binary"],
            train=celu.Dataset({"x": x["insurer"][train]}, label[train]),
            test=celu.Dataset({"x": x["insurer"][test]}, label[test]),
            bottom=Bottom(8),
        )
        hosts = {
            name: celu.Host(
                bottom=Bottom(WIDTHS[name]),
                train=celu.Dataset({"x": x[name][train]}),
                test=celu.Dataset({"x": x[name][test]}),
            )
            for name in names
        }
        result = celu.simulate(job, guest, hosts)
        print(f"with {len(names)} hosts: AUC {result.evaluations[-1]['auc']:.4f}")


if __name__ == "__main__":
    main()
