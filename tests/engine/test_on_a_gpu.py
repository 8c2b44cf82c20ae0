"""Training on a GPU gives equal results with rows on the GPU and with rows copied by batch."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

import celu
from celu.data.batch_loader import BatchLoader
from celu.data.order import BatchOrder
from celu.engine.optimizer import Optimizer
from celu.models.tops import InnerProductTop
from federation import BATCH, ROWS, Federation, federation

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
CUDA = torch.device("cuda")
BLOCKS = celu.Order(shuffle="blocks", block_rows=16, window_blocks=4)


def on_device(fed: Federation, *, rows_too: bool) -> Federation:
    fed = copy.deepcopy(fed)
    for module in fed.modules().values():
        module.to(CUDA)
    if not rows_too:
        return fed

    def moved(party: celu.Guest | celu.Host) -> dict[str, celu.Dataset]:
        return {"train": party.train.to(CUDA), "test": party.test.to(CUDA)}

    hosts = {n: dataclasses.replace(h, **moved(h)) for n, h in fed.hosts.items()}
    return Federation(fed.job, dataclasses.replace(fed.guest, **moved(fed.guest)), hosts)


@pytest.mark.parametrize("order", [celu.Order(), BLOCKS], ids=["rows", "blocks"])
def test_rows_copied_by_batch_train_like_rows_on_the_gpu(order: celu.Order) -> None:
    fed = federation(order=order)
    results = []
    for rows_too in (True, False) if order.shuffle == "rows" else (False, False):
        moved = on_device(fed, rows_too=rows_too)
        results.append((celu.simulate(moved.job, moved.guest, moved.hosts), moved.weights()))
    (one, weights), (other, others) = results
    assert one.evaluations[-1]["loss"] == pytest.approx(other.evaluations[-1]["loss"], rel=1e-4)
    for name, tensor in weights.items():
        torch.testing.assert_close(tensor, others[name], rtol=1e-3, atol=1e-5)


def test_a_guest_whose_top_has_no_parameters_computes_on_the_device_of_its_bottom() -> None:
    fed = federation(hosts={"host": 5})
    fed = Federation(
        fed.job, dataclasses.replace(fed.guest, top=InnerProductTop([5, 5])), fed.hosts
    )
    for rows_too in (True, False):
        moved = on_device(fed, rows_too=rows_too)
        assert celu.simulate(moved.job, moved.guest, moved.hosts).rounds == fed.job.rounds


@pytest.mark.parametrize(
    "settings",
    [
        {"name": "adagrad", "lr": 0.1, "initial_accumulator": 0.1},
        {"name": "adagrad", "lr": 0.1, "clip_norm": 1.0, "weight_decay": 0.01},
        {"name": "sgd", "lr": 0.01},
        {"name": "adam", "lr": 0.01},
        {"name": "adamw", "lr": 0.01},
    ],
    ids=lambda settings: " ".join(map(str, settings.values())),
)
def test_sparse_embedding_updates_on_the_gpu_are_deterministic_and_match_the_cpu(
    settings: dict[str, Any],
) -> None:
    generator = torch.Generator().manual_seed(1)
    # Skewed like real ids: one of them makes up most of a batch.
    batches = [(torch.rand(3000, generator=generator) ** 6 * 40).long() for _ in range(5)]
    targets = [torch.randn(3000, 8, generator=generator) for _ in batches]
    table = torch.randn(40, 8, generator=generator)

    def trained(device: str) -> torch.Tensor:
        model = nn.Sequential(nn.Embedding(40, 8, sparse=True, _weight=table.clone()))
        model.append(nn.Linear(8, 8, bias=False)).to(device)
        with torch.no_grad():
            model[1].weight.copy_(torch.eye(8))
        optimizer = Optimizer([model], celu.Optimizer(**settings), "guest", len(batches))
        for round_, (ids, target) in enumerate(zip(batches, targets, strict=True)):
            optimizer.set_round(round_)
            (model(ids.to(device)) - target.to(device)).pow(2).mean().backward()
            optimizer.step()
            if round_ == 2:  # through a checkpoint's copy
                optimizer.restore(optimizer.state())
        return torch.cat([p.detach().cpu().flatten() for p in model.parameters()])

    first, second, on_cpu = trained("cuda"), trained("cuda"), trained("cpu")
    assert first.equal(second)
    torch.testing.assert_close(first, on_cpu, rtol=1e-4, atol=1e-5)


def test_batches_are_copied_to_the_gpu_through_pinned_memory() -> None:
    table = federation().guest.train
    batch = table.take(torch.arange(8))
    assert all(t.pin_memory().is_pinned() for t in batch.inputs.values())
    loader = BatchLoader(table, BatchOrder(1, ROWS, BATCH), CUDA)
    for round_ in range(12):
        on_gpu, expected = loader.batch(round_), table.take(BatchOrder(1, ROWS, BATCH).rows(round_))
        assert on_gpu.inputs["ids"].is_cuda
        assert on_gpu.inputs["ids"].cpu().equal(expected.inputs["ids"])
        assert on_gpu.row_digest == expected.row_digest
    loader.close()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_parties_of_one_process_train_on_two_gpus_as_on_one() -> None:
    def trained(guest: str, host: str) -> dict[str, torch.Tensor]:
        fed = federation(hosts={"host": 5}, rounds=20, method=celu.Method(W=3, R=3), codec="4bit")
        for module in (fed.guest.bottom, fed.guest.top):
            assert module is not None
            module.to(guest)
        fed.hosts["host"].bottom.to(host)
        celu.simulate(fed.job, fed.guest, fed.hosts)
        return {name: tensor.cpu() for name, tensor in fed.weights().items()}

    expected = trained("cuda:0", "cuda:0")
    for devices in (("cuda:1", "cuda:1"), ("cuda:0", "cuda:1"), ("cuda:1", "cuda:0")):
        found = trained(*devices)
        assert all(tensor.equal(found[name]) for name, tensor in expected.items())
