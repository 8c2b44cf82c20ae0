"""Your own PyTorch modules at both parties, trained in this process.

    python examples/own_model.py

Across two machines, each party calls `celu.run`, or names its class in party.toml:
bottom = "own_model:Clinic".
"""

import torch
from torch import Tensor, nn

import celu


class Clinic(nn.Module):  # the host's bottom: its features become Z, [B, z_width]
    def __init__(self, z_width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, z_width))

    def forward(self, readings: Tensor) -> Tensor:
        return self.net(readings)


class Insurer(nn.Module):  # the guest's top; this guest has labels only, so no bottom
    def __init__(self, z_widths: list[int]) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(sum(z_widths), 32), nn.ReLU(), nn.Linear(32, 3))

    def forward(self, z_clinic: Tensor) -> Tensor:
        return self.net(z_clinic)


def main() -> None:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(4096, 6, generator=random)
    risk = torch.bucketize(x[:, 0] * x[:, 1] + x[:, 2], torch.tensor([-0.5, 0.5]))
    readings, labels = celu.Dataset({"readings": x}), celu.Dataset({}, risk)
    job = celu.Job(
        rounds=200,
        batch_size=256,
        guest="insurer",
        hosts={"clinic": 16},
        method=celu.Method(W=5, R=3, xi=60),
        evaluation=celu.Evaluation(every=50, metric="accuracy"),
    )
    torch.manual_seed(job.seed)
    guest = celu.Guest(top=Insurer([16]), loss="multiclass", train=labels, test=labels)
    host = celu.Host(bottom=Clinic(16), train=readings, test=readings)
    result = celu.simulate(job, guest, {"clinic": host})
    for evaluation in result.evaluations:
        print(f"round {evaluation['round']}: accuracy {evaluation['accuracy']:.3f}")


if __name__ == "__main__":
    main()
