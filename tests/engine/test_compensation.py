"""Stale derivatives corrected for how far Z has moved: docs/method.md."""

from __future__ import annotations

import copy
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import celu
from celu.engine.guest_trainer import GuestTrainer
from celu.engine.host_trainer import HostTrainer
from celu.errors import CheckpointError, ModelError
from celu.transport.message import Message
from celu.workset.weighting import CompensatedWeighting, StaleDerivatives, StaleLosses, Weights
from federation import (
    Federation,
    assert_same_bits,
    federation,
    train_in_memory,
    train_over_grpc,
)
from models.test_losses import margin

METHOD = celu.Method(W=3, R=3, depth=2, weighting="compensated")
SGD = celu.Optimizer(name="sgd", lr=0.05)


@pytest.mark.parametrize("classes", [1, 2, 5])
def test_over_the_models_own_labels_the_correction_is_the_gauss_newton_product(
    classes: int,
) -> None:
    torch.manual_seed(1)
    top = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, classes)).double()
    z_BD = torch.randn(8, 4).double()
    moved_BD = 0.1 * torch.randn(8, 4).double()
    loss = celu.LOSSES["binary" if classes == 1 else "multiclass"]

    output_BK = top(z_BD).detach()
    jacobian_KBD = torch.autograd.functional.jacobian(lambda z: top(z).sum(dim=0), z_BD)
    turned_BK = torch.einsum("kbd,bd->bk", jacobian_KBD, moved_BD)
    if classes == 1:
        p_BK = torch.cat([1 - output_BK.sigmoid(), output_BK.sigmoid()], dim=1)
        bent_BK = p_BK[:, :1] * p_BK[:, 1:] * turned_BK
    else:
        p_BK = output_BK.softmax(dim=1)
        bent_BK = p_BK * (turned_BK - (p_BK * turned_BK).sum(dim=1, keepdim=True))
    expected = torch.einsum("kbd,bk->bd", jacobian_KBD, bent_BK) / len(z_BD)

    mean = torch.zeros_like(z_BD)
    for label in range(p_BK.shape[1]):
        leaf = z_BD.clone().requires_grad_()
        labels = torch.full((len(z_BD),), label)
        (dz_BD,) = torch.autograd.grad(loss.per_instance(top(leaf), labels).mean(), leaf)
        stale = StaleDerivatives(z_BD + moved_BD, z_BD, dz_BD, loss.curvature(leaf, labels))
        factor_B = CompensatedWeighting(60).weigh_derivatives(stale).weights_B
        assert 0 < float(factor_B.min()) <= float(factor_B.max()) < 2  # none is clipped
        mean += p_BK[:, label, None] * (factor_B - 1)[:, None] * dz_BD
    torch.testing.assert_close(mean, expected, rtol=1e-9, atol=1e-12)


def trainers(fed: Federation) -> tuple[HostTrainer, GuestTrainer]:
    host = HostTrainer("host", fed.hosts["host"], fed.job)
    return host, GuestTrainer("guest", fed.guest, fed.job)


def flat(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def test_a_host_corrects_with_the_curvature_that_the_guest_sends() -> None:
    fed = federation(loss="regression", method=METHOD, optimizer=SGD)
    host, guest = trainers(fed)
    activations = [host.compute_activation(round_) for round_ in (0, 1)]
    derivatives = []
    for round_, activation in enumerate(activations):
        _, (derivative,) = guest.compute_derivatives(round_, [activation])
        assert guest.latest is not None
        output, batch = guest.latest
        assert batch.labels is not None
        mean_square = (output.detach().reshape(-1) - batch.labels).square().mean()
        assert derivative.curvature == pytest.approx(1 / (2 * float(mean_square)))
        assert derivative.curvature != 1
        guest.apply_update()
        derivatives.append(derivative)
    host.update(0, derivatives[0])  # nothing has moved yet; this moves Z of round 1

    bottom = fed.hosts["host"].bottom
    for round_, update in ((1, lambda: host.update(1, derivatives[1])), (0, host.local_step)):
        sent, received = activations[round_], derivatives[round_]
        assert sent.tensor is not None and received.tensor is not None
        fresh_BD = bottom(**host.loader.batch(round_).inputs)
        moved_B = (received.tensor * (fresh_BD - sent.tensor)).sum(dim=1).detach()
        factor_B = (1 + received.curvature * 32 * moved_B).clamp(0, 2)
        assert float((factor_B - 1).abs().max()) > 1e-3
        gradients = torch.autograd.grad(
            fresh_BD, list(bottom.parameters()), factor_B[:, None] * received.tensor
        )
        gradient = torch.cat([(g.to_dense() if g.is_sparse else g).flatten() for g in gradients])
        before = flat(bottom)
        update()
        torch.testing.assert_close((before - flat(bottom)) / SGD.lr, gradient, rtol=1e-3, atol=1e-5)
    assert [e.curvature for e in host.workset.table] == [d.curvature for d in derivatives]


def test_the_curvature_of_a_regression_crosses_a_network(tmp_path: Path) -> None:
    fed = federation(loss="regression", method=METHOD, codec="4bit", hosts={"a": 6, "b": 3})
    weights = train_in_memory(fed)
    assert_same_bits(weights, train_over_grpc(fed, tmp_path))
    # A guest that claims a log loss sends 1: other weights, so the number is used.
    fed.guest = replace(fed.guest, loss=replace(fed.guest.loss, is_log_loss=True))
    wrong = train_in_memory(fed)
    assert any(not torch.equal(weights[name], wrong[name]) for name in weights)


def test_each_party_compares_with_the_exact_tensor_that_it_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A rate so small that no weight changes, and a code so coarse that decoded tensors differ.
    fed = federation(
        method=celu.Method(W=1, R=3, weighting="compensated"),
        optimizer=celu.Optimizer(name="sgd", lr=1e-30),
        codec={"activation": "2bit", "derivative": "2bit", "evaluation": "fp32"},
    )
    before = fed.weights()
    host, guest = trainers(fed)
    factors = []
    weigh = host.workset.weigh
    monkeypatch.setattr(
        host.workset, "weigh", lambda *a: (factors.append(weigh(*a)), factors[-1])[1]
    )
    _, (derivative,) = guest.compute_derivatives(0, [host.compute_activation(0)])
    guest.apply_update()
    host.update(0, derivative)
    for trainer in (host, guest):
        trainer.local_step()
        (entry,) = trainer.workset.table
        compared_BD = entry.z[0] if trainer is host else entry.dz[0]
        assert trainer.workset.similarity_B is not None
        expected = (compared_BD.norm(dim=1) > 0).float()  # a row of zeros has no direction
        assert expected.sum() > 25
        similarity_B = trainer.workset.similarity_B
        torch.testing.assert_close(similarity_B, expected, rtol=0, atol=1e-6)
    assert_same_bits(fed.weights(), before)
    assert [weights.weights_B.tolist() for weights in factors] == [[1.0] * 32]


def in_flight() -> tuple[Federation, HostTrainer, list[Message]]:
    """A host with an update behind it and two rounds in flight, and their derivatives."""
    fed = federation(
        loss="regression",
        method=celu.Method(W=3, R=3, depth=3, weighting="compensated"),
        codec="4bit",
    )
    host, guest = trainers(fed)
    activations = [host.compute_activation(round_) for round_ in range(3)]
    derivatives = [guest.compute_derivatives(r, [z])[1][0] for r, z in enumerate(activations)]
    host.update(0, derivatives[0])
    return fed, host, derivatives


def test_a_checkpoint_with_rounds_in_flight_resumes_bit_for_bit() -> None:
    fed, host, derivatives = in_flight()
    resumed = copy.deepcopy(fed)
    again = HostTrainer("host", resumed.hosts["host"], fed.job)
    again.load_state_dict(*host.state_dict())
    for trainer in (host, again):
        trainer.local_step()
        for round_ in (1, 2):
            trainer.update(round_, derivatives[round_])
        for _ in range(3):
            trainer.local_step()
    assert_same_bits(fed.weights(), resumed.weights())
    assert [e.curvature for e in again.workset.table] == [e.curvature for e in host.workset.table]
    assert 1.0 not in [e.curvature for e in host.workset.table]


@pytest.mark.parametrize("damage", ["missing", "misshapen"])
def test_a_checkpoint_without_the_exact_z_of_a_round_in_flight_is_refused(damage: str) -> None:
    fed, host, _ = in_flight()
    metadata, tensors = host.state_dict()
    exact_BD = tensors.pop("in_flight_exact.2")
    if damage == "misshapen":
        tensors["in_flight_exact.2"] = exact_BD[:5]
    with pytest.raises(CheckpointError, match=r"in_flight_exact\.2: .* \[32, 6\]"):
        HostTrainer("host", fed.hosts["host"], fed.job).load_state_dict(metadata, tensors)


def test_with_an_exact_codec_z_in_flight_is_stored_once() -> None:
    fed = federation(method=METHOD)
    host, _ = trainers(fed)
    host.compute_activation(0)
    names = [name for name in host.state_dict()[1] if name.startswith("in_flight")]
    assert names == ["in_flight.0"]


def test_only_a_correction_needs_a_loss_that_can_be_differentiated_twice() -> None:
    fed = federation(loss="multiclass", method=celu.Method(R=2, weighting="cosine"))
    fed.guest = replace(fed.guest, loss=celu.Loss(margin))
    train_in_memory(fed)
    fed.job = fed.job.model_copy(update={"method": METHOD})
    with pytest.raises(ModelError, match="guest: the loss cannot be differentiated twice"):
        train_in_memory(fed)


@pytest.mark.parametrize(
    ("loss", "weighting", "expected"),
    [
        ("regression", "cosine", 1.0),
        ("regression", "none", 1.0),
        ("regression", "compensated", None),
        ("binary", "compensated", 1.0),
    ],
)
def test_a_guest_sends_a_curvature_only_to_hosts_that_may_use_it(
    loss: str, weighting: str, expected: float | None
) -> None:
    fed = federation(loss=loss, method=celu.Method(R=2, weighting=weighting))
    host, guest = trainers(fed)
    _, (derivative,) = guest.compute_derivatives(0, [host.compute_activation(0)])
    assert (derivative.curvature == 1.0) is (expected == 1.0)


class Recording:
    """A custom policy: corrects less, and records what it is called with."""

    seen: list[StaleDerivatives | StaleLosses] = []

    def __init__(self, xi_degrees: float) -> None:
        assert xi_degrees == 45

    def weigh_derivatives(self, stale: StaleDerivatives) -> Weights:
        self.seen.append(stale)
        half = torch.full((len(stale.dz_BD),), 0.5)
        return Weights(half, half)

    def weigh_losses(self, stale: StaleLosses) -> Weights:
        self.seen.append(stale)
        full = torch.ones(len(stale.fresh_BD))
        return Weights(full, full)


def test_a_custom_policy_weighs_derivatives_at_the_host_and_losses_at_the_guest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = types.ModuleType("custom_policies")
    module.Recording = Recording  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "custom_policies", module)
    monkeypatch.setattr(Recording, "seen", [])
    method = celu.Method(W=2, R=2, xi=45, weighting="custom_policies:Recording")
    fed = federation(loss="regression", method=method, rounds=4)
    train_in_memory(fed)
    # Local steps in rounds 2 to 4 at both parties, and the host's exchanged updates after them.
    assert [type(stale) for stale in Recording.seen].count(StaleLosses) == 3
    at_host = [stale for stale in Recording.seen if isinstance(stale, StaleDerivatives)]
    assert len(at_host) == 6
    assert all(stale.dz_BD.shape == stale.stale_BD.shape == (32, 6) for stale in at_host)
    assert all(0 < stale.curvature != 1 for stale in at_host)
