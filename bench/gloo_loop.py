"""The reference of `scripts/bench step`: a hand-written loop over torch.distributed with gloo.

Run as `python -m bench.gloo_loop PARTY.toml JOB.toml PORT`: the shortest loop that trains the same
rows and modules as `celu run`. Prints the seconds of each step as JSON. It has no encryption, no
checks and no records: not usable between companies, but a fair lower bound.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from celu.config.job import Job, read_job
from celu.config.party import read_party
from celu.data.order import BatchOrder
from celu.launch.loading import load_party
from celu.party import Guest, Host


def main() -> None:
    """Train one party."""
    party_file, job_file, port = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    settings, job = read_party(party_file), read_job(job_file)
    torch.set_num_threads(settings.threads or 1)
    party = load_party(settings, job, party_file.parent)
    rank = 0 if settings.role == "guest" else 1
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    times = train_guest(party, job) if isinstance(party, Guest) else train_host(party, job)
    dist.destroy_process_group()
    sys.stdout.write(json.dumps(times) + "\n")


def train_host(host: Host, job: Job) -> list[float]:
    """Forward, send, receive, backward, step."""
    optimizer = _optimizer(list(host.bottom.parameters()), job)
    order = BatchOrder(job.seed, host.train.num_rows, job.batch_size)
    dz = torch.empty(job.batch_size, next(iter(job.hosts.values())).z_width)
    times = []
    for round_ in range(job.rounds or 0):
        started = time.perf_counter()
        z = host.bottom(**host.train.take(order.rows(round_)).inputs)
        dist.send(z.detach(), 0)
        dist.recv(dz, 0)
        z.backward(dz)
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - started)
    return times


def train_guest(guest: Guest, job: Job) -> list[float]:
    """Receive, forward, backward, send, step."""
    assert guest.bottom is not None
    parameters = [*guest.bottom.parameters(), *guest.top.parameters()]
    optimizer = _optimizer(parameters, job)
    order = BatchOrder(job.seed, guest.train.num_rows, job.batch_size)
    times = []
    for round_ in range(job.rounds or 0):
        started = time.perf_counter()
        batch = guest.train.take(order.rows(round_))
        assert batch.labels is not None
        z = torch.empty(job.batch_size, next(iter(job.hosts.values())).z_width)
        dist.recv(z, 1)
        z.requires_grad_()
        output = guest.top(guest.bottom(**batch.inputs), z)
        guest.loss.per_instance(output, batch.labels).mean().backward()
        assert z.grad is not None
        dist.send(z.grad, 1)
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - started)
    return times


def _optimizer(parameters: list[torch.nn.Parameter], job: Job) -> torch.optim.Optimizer:
    accumulator = job.optimizer.initial_accumulator or 0.0
    return torch.optim.Adagrad(
        parameters, lr=job.optimizer.lr, initial_accumulator_value=accumulator
    )


if __name__ == "__main__":
    main()
