"""Noise on Z and dZ: what is sent has it, what the sender caches does not, and it is refused."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import celu
from celu.data.order import BatchOrder
from celu.engine.guest_trainer import GuestTrainer
from celu.engine.host_trainer import HostTrainer
from celu.errors import ConfigError
from celu.models.clipped import clip_rows
from celu.transport.message import Kind, Message
from federation import (
    BATCH,
    ROWS,
    Federation,
    assert_same_bits,
    federation,
    train_in_memory,
    train_over_grpc,
)
from noises import GAUSSIAN, MARVELL, noisy_federation
from twins import messages_to_hosts


def exchange(fed: Federation) -> tuple[HostTrainer, GuestTrainer, Message, Message]:
    """The first round: both trainers, Z as sent, and dZ as sent."""
    host = HostTrainer("host", fed.hosts["host"], fed.job)
    guest = GuestTrainer("guest", fed.guest, fed.job)
    z = host.compute_activation(0)
    _, (dz,) = guest.compute_derivatives(0, [z])
    guest.apply_update()
    host.update(0, dz)
    return host, guest, z, dz


def cached(trainer: HostTrainer | GuestTrainer) -> tuple[Tensor, Tensor]:
    (entry,) = trainer.workset.table.state()[1]
    return entry.z[0], entry.dz[0]


def test_each_sender_caches_its_own_tensor_without_noise_and_each_receiver_with_it() -> None:
    fed = noisy_federation(z_noise=GAUSSIAN, dz_noise=GAUSSIAN, method=celu.Method(R=3))
    plain = copy.deepcopy(fed)
    host, guest, z, dz = exchange(fed)
    assert z.tensor is not None and dz.tensor is not None
    z_of_host, dz_of_host = cached(host)
    z_of_guest, dz_of_guest = cached(guest)
    assert torch.equal(z_of_guest, z.tensor) and torch.equal(dz_of_host, dz.tensor)
    order = BatchOrder(fed.job.seed, ROWS, BATCH)
    with torch.no_grad():
        rows = {n: t[order.rows(0)] for n, t in plain.hosts["host"].train.inputs.items()}
        assert torch.equal(z_of_host, clip_rows(plain.hosts["host"].bottom(**rows), 0.5))
    assert not torch.equal(z_of_host, z.tensor) and not torch.equal(dz_of_guest, dz.tensor)


def test_noise_has_the_size_that_the_contract_says() -> None:
    fed = noisy_federation(z_noise=GAUSSIAN, dz_noise=GAUSSIAN, method=celu.Method(R=3))
    host, guest, z, dz = exchange(fed)
    assert z.tensor is not None and dz.tensor is not None
    added = z.tensor - cached(host)[0]
    assert float(added.std()) == pytest.approx(0.5 * 2.0, rel=0.15)
    clipped = clip_rows(cached(guest)[1], 0.5 / BATCH)  # of the mean over a batch
    assert float((dz.tensor - clipped).std()) == pytest.approx(0.5 * 2.0 / BATCH, rel=0.15)


@pytest.mark.parametrize(
    "noise", [{"z_noise": GAUSSIAN}, {"dz_noise": GAUSSIAN}, {"dz_noise": MARVELL}]
)
def test_noise_follows_from_the_key_and_not_from_the_seed(noise: dict[str, Any]) -> None:
    fed = noisy_federation(**noise)
    same, other = copy.deepcopy(fed), noisy_federation(**noise, key=b"another key of noise")

    def sent(fed: Federation) -> list[bytes]:
        return [m.tensor.numpy().tobytes() for m in exchange(fed)[2:] if m.tensor is not None]

    first = sent(fed)
    assert first == sent(same) != sent(other)


def test_held_out_rows_get_noise_of_their_own_at_every_evaluation() -> None:
    fed = noisy_federation(z_noise=GAUSSIAN)
    host = HostTrainer("host", fed.hosts["host"], fed.job)
    one, again, later = (host.compute_test_activation("test", r, 0, 0, BATCH) for r in (3, 3, 6))
    assert one.tensor is not None and again.tensor is not None and later.tensor is not None
    assert torch.equal(one.tensor, again.tensor)  # a run that resumes repeats its bytes
    assert not torch.equal(one.tensor, later.tensor)


def test_the_mean_z_that_a_guest_receives_is_that_of_noisy_rows() -> None:
    fed = noisy_federation(z_noise=GAUSSIAN)
    host = HostTrainer("host", fed.hosts["host"], fed.job)
    with torch.no_grad():
        exact_D = host._model(**fed.hosts["host"].train.inputs).mean(0)
    away = (host.mean_activation() - exact_D) * ROWS**0.5  # in deviations of one row's noise
    assert 0.2 < float(away.std()) < 3.0


def test_two_tensors_never_get_the_same_noise() -> None:
    fed = noisy_federation(z_noise=GAUSSIAN)
    changed = copy.deepcopy(fed)
    with torch.no_grad():
        for parameter in changed.hosts["host"].bottom.parameters():
            parameter.mul_(1.01)
    noises = []
    for one in (fed, changed):  # the same key, round and rows, as after a rollback
        host = HostTrainer("host", one.hosts["host"], one.job)
        z = host.compute_activation(0)
        exact = cached_in_flight(host)
        assert z.tensor is not None
        noises.append(z.tensor - exact)
    assert float((noises[0] - noises[1]).std()) > 1.0  # that of a difference of two noises: 1.41


def cached_in_flight(host: HostTrainer) -> Tensor:
    return host._in_flight.pop(0).exact_BD


@pytest.mark.parametrize("noise", [GAUSSIAN, MARVELL])
def test_runs_with_two_hosts_have_the_same_bits_over_grpc_and_in_memory(
    noise: dict[str, Any], tmp_path: Any
) -> None:
    fed = noisy_federation(
        z_noise=GAUSSIAN, dz_noise=noise, hosts={"one": 6, "two": 6}, codec="4bit",
        method=celu.Method(R=3, W=3, depth=2), rounds=8,
    )  # fmt: skip
    assert_same_bits(train_over_grpc(fed, tmp_path), train_in_memory(fed))


def test_marvell_copes_with_a_batch_of_one_class() -> None:
    fed = noisy_federation(dz_noise=MARVELL, batch_size=2, rounds=20)
    messages, _ = messages_to_hosts(fed)
    sent = [m.tensor for m in messages if m.kind is Kind.DERIVATIVE and m.tensor is not None]
    assert len(sent) == 20 and all(bool(dz.isfinite().all()) for dz in sent)


def test_a_model_in_use_clips_z_as_in_training() -> None:
    fed = noisy_federation(z_noise=GAUSSIAN)
    result = celu.simulate(fed.job, fed.guest, fed.hosts)
    model = celu.models_of(result, fed.job, fed.guest, fed.hosts)["host"]
    z = model.activations(fed.hosts["host"].test.take(slice(0, 20)))
    assert float(z.norm(dim=1).max()) <= 0.5 + 1e-6


def test_noise_that_cannot_be_used_is_refused_by_name() -> None:
    def refused(fed: Federation, why: str) -> None:
        with pytest.raises(ConfigError, match=why):
            celu.simulate(fed.job, fed.guest, fed.hosts)

    auto = r"privacy\.z_noise: expected none with method\.auto"
    refused(noisy_federation(z_noise=GAUSSIAN, method="auto"), auto)
    refused(noisy_federation(dz_noise=MARVELL, loss="multiclass"), "labels of two classes")
    refused(noisy_federation(dz_noise=GAUSSIAN, key=None), "noise_key: expected a key for")
    fed = noisy_federation(z_noise=GAUSSIAN)
    hosts = {name: replace(host, noise_key=b"short") for name, host in fed.hosts.items()}
    refused(replace(fed, hosts=hosts), "noise_key: expected a key of 16 to 64 bytes, got 5")
    with pytest.raises(ConfigError, match="dz_noise: expected none with label_epsilon"):
        federation(privacy={"label_epsilon": 1.0, "dz_noise": GAUSSIAN})
    with pytest.raises(ConfigError, match=r"privacy\.dz_noise"):
        federation(privacy={"dz_noise": {"name": "marvell", "clip": 1.0}})


def test_noise_on_z_goes_with_the_twin() -> None:
    fed = noisy_federation(z_noise=GAUSSIAN, label_epsilon=1.0)
    assert celu.simulate(fed.job, fed.guest, fed.hosts).own_weights is not None
