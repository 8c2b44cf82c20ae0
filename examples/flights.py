"""Will a flight be late? An airline alone, and together with a weather service (real data).

    python examples/flights.py

Needs the extra `flights` (pip install ".[flights]"). `celu demo` does it between two processes.
"""

import tempfile
from pathlib import Path

import torch

import celu
from celu.data.flights import write_flights
from celu.models.tops import WideDeepTop
from celu.models.tower import Tower

Z_WIDTH = 32


def open_party(store: Path, *, label: bool) -> tuple[Tower, celu.StoreDatasets]:
    opened = celu.open_store(store)
    rows = celu.open_datasets(opened, opened.inputs(), label=label)
    columns = {name: column.shape[1] for name, column in rows.train.inputs.items()}
    bottom = Tower(Z_WIDTH, columns, rows.train.sizes, embedding_dim=8, hidden=(32,))
    return bottom, rows


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_flights(Path(folder))
        for names in ([], ["weather"]):
            torch.manual_seed(1)
            hosts = {}
            for name in names:
                bottom, rows = open_party(Path(folder, name, "store"), label=False)
                hosts[name] = celu.Host(bottom=bottom, train=rows.train, test=rows.test)
            bottom, rows = open_party(Path(folder, "airline", "store"), label=True)
            top = WideDeepTop([Z_WIDTH] * (1 + len(hosts)), hidden=(32,))
            guest = celu.Guest(
                top=top, loss=celu.LOSSES["binary"], train=rows.train, test=rows.test, bottom=bottom
            )
            job = celu.Job(
                rounds=100,
                guest="airline",
                hosts={name: celu.HostTerms(z_width=Z_WIDTH) for name in names},
                evaluation=celu.Evaluation(every=100, rows=10_000),
            )
            result = celu.simulate(job, guest, hosts)
            who = " and ".join(["airline", *names])
            print(f"{who}: AUC {result.evaluations[-1]['auc']:.4f}")


if __name__ == "__main__":
    main()
