"""Clicks in the shape of Criteo (made up), and the seconds a run would take over a WAN.

    python examples/clicks.py

A guest with 13 numbers and the clicks, a host with 26 fields of ids; one process, virtual time.
The same data as files, for `celu run`: celu data criteo FOLDER.
"""

import torch

import celu
from celu.data.clicks import click_chunk, field_sizes
from celu.models.tops import WideDeepTop
from celu.models.tower import Tower

Z_WIDTH, MAX_CODES = 64, 100


def parties() -> tuple[celu.Guest, celu.Host]:
    clicks = click_chunk("criteo", seed=1, chunk=0, rows=30_000, max_codes=MAX_CODES)
    numbers = torch.stack([torch.from_numpy(c) for c in clicks.guest.values()], dim=1)
    ids = torch.stack([torch.from_numpy(c).long() for c in clicks.host.values()], dim=1)
    labels = torch.from_numpy(clicks.label)
    sizes = {"ids": tuple(field_sizes("criteo", max_codes=MAX_CODES)["host"].values())}
    train, test = slice(0, 25_000), slice(25_000, None)
    torch.manual_seed(1)
    guest = celu.Guest(
        top=WideDeepTop([Z_WIDTH, Z_WIDTH]),
        loss=celu.LOSSES["binary"],
        train=celu.Dataset({"numbers": numbers[train]}, labels[train]),
        test=celu.Dataset({"numbers": numbers[test]}, labels[test]),
        bottom=Tower(Z_WIDTH, {"numbers": 13}, {}, hidden=(64,)),
    )
    host = celu.Host(
        bottom=Tower(Z_WIDTH, {"ids": 26}, sizes, embedding_dim=8, hidden=(64,)),
        train=celu.Dataset({"ids": ids[train]}, None, sizes),
        test=celu.Dataset({"ids": ids[test]}, None, sizes),
    )
    return guest, host


def main() -> None:
    ways = {
        "vanilla, one round at a time": celu.Method(R=1),
        "local steps at the guest": celu.Method(),
        "and 4 rounds in flight, int8": celu.Method(depth=4),
    }
    line = celu.find_link("wan-100")
    for words, method in ways.items():
        job = celu.Job(
            rounds=60,
            batch_size=512,
            hosts={"host": celu.HostTerms(z_width=Z_WIDTH)},
            method=method,
            codec="int8" if method.depth > 1 else "fp32",
            evaluation=celu.Evaluation(every=60),
        )
        guest, host = parties()
        last = celu.simulate(job, guest, {"host": host}, link=line).evaluations[-1]
        print(f"{words}: AUC {last['auc']:.4f}, {last['seconds']:.1f} s over wan-100")


if __name__ == "__main__":
    main()
