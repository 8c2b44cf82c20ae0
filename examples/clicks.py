"""Synthetic clicks in the shape of Criteo, and how long training would take over a WAN.

    python examples/clicks.py

The guest has 13 numbers and the clicks, the host 26 fields of ids. Both run in this process, and
the seconds are virtual. `celu data criteo FOLDER` writes such data with settings for `celu run`.
"""

import tempfile
from pathlib import Path

import torch

import celu

Z_WIDTH = 64
METHODS = {
    "vanilla, one round at a time": (celu.Method(R=1), "fp32"),
    "local steps at the guest": (celu.Method(), "fp32"),
    "local steps, 4 rounds in flight, int8": (celu.Method(depth=4), "int8"),
}


def make_bottom(data: celu.Dataset) -> celu.Tower:
    num_columns = {name: tensor.shape[1] for name, tensor in data.inputs.items()}
    return celu.Tower(Z_WIDTH, num_columns, data.sizes, embedding_dim=8, hidden=(64,))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        celu.write_clicks(Path(folder), "criteo", rows=30_000, max_codes=100)
        clicks = celu.open_store(Path(folder, "guest", "store")).datasets()
        fields = celu.open_store(Path(folder, "host", "store")).datasets()
        for name, (method, codec) in METHODS.items():
            torch.manual_seed(1)
            guest = celu.Guest(
                bottom=make_bottom(clicks.train),
                top=celu.WideDeepTop([Z_WIDTH, Z_WIDTH]),
                loss="binary",
                train=clicks.train,
                test=clicks.test,
            )
            host = celu.Host(bottom=make_bottom(fields.train), train=fields.train, test=fields.test)
            job = celu.Job(
                rounds=60,
                batch_size=512,
                hosts={"host": Z_WIDTH},
                method=method,
                codec=codec,
                evaluation=celu.Evaluation(every=60),
            )
            result = celu.simulate(job, guest, {"host": host}, link="wan-100")
            seconds = result.evaluations[-1]["seconds"]
            print(f"{name}: AUC {result.metrics['auc']:.4f}, {seconds:.1f} s over wan-100")


if __name__ == "__main__":
    main()
