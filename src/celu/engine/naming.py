"""The end of a run: the parties exchange digests of their weights, which name the model."""

from __future__ import annotations

from collections.abc import Mapping

from celu.config.job import Job
from celu.engine.guest_trainer import GuestTrainer
from celu.engine.host_trainer import HostTrainer
from celu.model_identity import (
    ModelIdentity,
    host_body,
    now,
    read_guest_body,
    read_host_body,
)
from celu.transport.link import Link
from celu.transport.message import Kind, Message, expect


async def name_model(
    name: str,
    job: Job,
    links: Mapping[str, Link],
    trainer: GuestTrainer,
    run: str,
    rounds: int,
) -> tuple[ModelIdentity, dict[str, list[float]]]:
    """Collect the digests of all weights, send the model's identity; also return each mean Z."""
    weights, mean_z = {name: trainer.public_digest()}, {}
    for host, link in links.items():
        body = expect(await link.receive(), Kind.MODEL).body
        weights[host], mean_z[host] = read_host_body(host, body, job.hosts[host].z_width)
    identity = ModelIdentity(run=run, round=rounds, weights=weights, trained_at=now())
    for link in links.values():
        await link.send(Message(Kind.MODEL, body=identity.model_dump()))
    return identity, mean_z


async def name_model_with_guest(
    name: str, job: Job, link: Link, trainer: HostTrainer, run: str, rounds: int
) -> ModelIdentity:
    """Send the digest of a host's weights and its mean Z; return the model's identity."""
    digest = trainer.digest()
    await link.send(Message(Kind.MODEL, body=host_body(digest, trainer.mean_activation())))
    expected = {
        "run": run,
        "round": rounds,
        "parties": sorted([job.guest, *job.hosts]),
        f"weights of {name}": digest,
    }
    return read_guest_body(link.peer, expect(await link.receive(), Kind.MODEL).body, expected)
