"""Will a flight be late? An airline alone, and together with a weather service (real data).

    python examples/flights.py

Needs the extra `flights` (pip install ".[flights]"). `celu demo` trains the two parties as two
processes over TLS.
"""

import tempfile
from pathlib import Path

import torch

import celu

Z_WIDTH = 32


def make_bottom(data: celu.Dataset) -> celu.Tower:
    num_columns = {name: tensor.shape[1] for name, tensor in data.inputs.items()}
    return celu.Tower(Z_WIDTH, num_columns, data.sizes, embedding_dim=8, hidden=(32,))


def train(folder: Path, host_names: list[str]) -> float:
    torch.manual_seed(1)
    hosts = {}
    for name in host_names:
        data = celu.open_store(folder / name / "store").datasets()
        hosts[name] = celu.Host(bottom=make_bottom(data.train), train=data.train, test=data.test)
    data = celu.open_store(folder / "airline" / "store").datasets()
    guest = celu.Guest(
        bottom=make_bottom(data.train),
        top=celu.WideDeepTop([Z_WIDTH] * (1 + len(hosts)), hidden=(32,)),
        loss="binary",
        train=data.train,
        test=data.test,
    )
    job = celu.Job(
        rounds=100,
        guest="airline",
        hosts=dict.fromkeys(host_names, Z_WIDTH),
        evaluation=celu.Evaluation(every=100, rows=10_000),
    )
    return celu.simulate(job, guest, hosts).metrics["auc"]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        celu.write_flights(Path(folder))
        print(f"airline alone: AUC {train(Path(folder), []):.4f}")
        print(f"airline and weather: AUC {train(Path(folder), ['weather']):.4f}")


if __name__ == "__main__":
    main()
