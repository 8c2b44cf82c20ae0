"""The weighted local step of both roles, compared with manual computations."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import celu
from celu.data.dataset import Batch
from celu.data.order import BatchOrder
from celu.engine.coding import Coding
from celu.engine.device import device_of
from celu.engine.guest_trainer import GuestTrainer
from celu.engine.host_trainer import HostTrainer
from celu.errors import ModelError
from celu.transport.message import Kind, Message
from celu.workset.weighting import StaleDerivatives, StaleLosses, Weights
from federation import federation, train_in_memory

NO_TAGS = np.zeros((0, 16), np.uint8)

LR = 0.5


class Scale(nn.Module):
    """Z = x * weight, elementwise: derivatives are easy to compute on paper."""

    def __init__(self, weight: list[float]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class SumTop(nn.Module):
    """The output is the sum of all Z, times a scale."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, *zs: Tensor) -> Tensor:
        return self.scale * sum(z.sum(dim=1) for z in zs)


def job(**method: object) -> celu.Job:
    return celu.Job(
        rounds=4,
        batch_size=3,
        hosts={"host": celu.HostTerms(z_width=2)},
        method=celu.Method(**method),
        optimizer=celu.Optimizer(name="sgd", lr=LR),
    )


X = torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.0, 1.0]])


def host_with_cached(stale: Tensor, dz: Tensor, xi: float) -> tuple[HostTrainer, Scale]:
    bottom = Scale([1.0, 1.0])
    table = celu.Dataset({"x": X})
    trainer = HostTrainer(
        "host",
        celu.Host(bottom=bottom, train=table, test=table),
        job(W=1, R=2, xi=xi, weighting="cosine"),
    )
    trainer.workset.insert(0, Batch({"x": X}, None, NO_TAGS), (stale,), (dz,))
    return trainer, bottom


def test_a_hosts_local_step_weights_the_rows_of_the_stale_derivative() -> None:
    # Fresh Z is X. Angles to the stale Z: 45, 0 and 90 degrees, so with xi = 60 the weights are
    # sqrt(1/2), 1 and 0.
    stale = torch.tensor([[1.0, 0.0], [2.0, 0.0], [1.0, 0.0]])
    dz = torch.tensor([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
    trainer, bottom = host_with_cached(stale, dz, xi=60.0)
    trainer.local_step()
    root = 0.5**0.5
    gradient = torch.tensor([root * 0.1 * 1 + 0.3 * 1, root * 0.2 * 1 + 0.4 * 0 + 0.0 * 0.6])
    torch.testing.assert_close(bottom.weight.data, torch.ones(2) - LR * gradient)


def test_without_weighting_a_hosts_local_step_uses_the_stale_derivative_as_it_is() -> None:
    dz = torch.tensor([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
    bottom = Scale([1.0, 1.0])
    table = celu.Dataset({"x": X})
    settings = job(W=1, R=2, weighting="none")
    trainer = HostTrainer("host", celu.Host(bottom=bottom, train=table, test=table), settings)
    trainer.workset.insert(0, Batch({"x": X}, None, NO_TAGS), (-X,), (dz,))
    trainer.local_step()
    torch.testing.assert_close(bottom.weight.data, torch.ones(2) - LR * (X * dz).sum(dim=0))


def squared(output: Tensor, labels: Tensor) -> Tensor:
    return (output - labels).square() / 2


def guest(loss: Callable[[Tensor, Tensor], Tensor], xi: float) -> tuple[GuestTrainer, SumTop]:
    top = SumTop()
    labels = torch.tensor([0.0, 1.0, 5.0])
    table = celu.Dataset({}, labels)
    trainer = GuestTrainer(
        "guest",
        celu.Guest(top=top, loss=celu.Loss(loss), train=table, test=table),
        job(W=1, R=2, xi=xi),
    )
    return trainer, top


def activation(trainer: GuestTrainer, z: Tensor) -> Message:
    plain = Message(Kind.ACTIVATION, 0, tensor=z, row_digest=trainer.loader.batch(0).row_digest)
    return Coding(job(), "host").pack(plain)


def test_the_guests_local_step_weights_the_losses_of_instances() -> None:
    # Output is the row sum 2, 2, 2; errors are 2, 1, -3; dZ of a row is error/3 in both columns.
    z = torch.tensor([[1.0, 1.0], [2.0, 0.0], [0.0, 2.0]])
    labels = torch.tensor([0.0, 1.0, 5.0])
    # Angles of fresh to stale dZ: 0, 45 and 180 degrees.
    stale_dz = torch.tensor([[0.9, 0.9], [1.0, 0.0], [1.0, 1.0]])
    trainer, top = guest(squared, xi=60.0)
    trainer.workset.insert(0, Batch({}, labels, NO_TAGS), (z,), (stale_dz,))
    trainer.local_step()
    # d(mean of weight * loss)/d scale = mean of weight * error * row sum.
    gradient = (1.0 * 2 * 2 + 0.5**0.5 * 1 * 2 + 0.0 * -3 * 2) / 3
    assert top.scale.item() == pytest.approx(1.0 - LR * gradient, abs=1e-6)


def test_the_guest_returns_the_derivative_of_the_mean_loss() -> None:
    trainer, _ = guest(squared, xi=60.0)
    z = torch.ones(3, 2)
    loss, (derivative,) = trainer.compute_derivatives(0, [activation(trainer, z)])
    rows = BatchOrder(1, 3, 3).rows(0)
    errors = 2.0 - torch.tensor([0.0, 1.0, 5.0])[rows]
    assert float(loss) == pytest.approx(float((errors**2 / 2).mean()))
    dz = Coding(job(), "host").unpack(derivative, 3)
    torch.testing.assert_close(dz, (errors / 3)[:, None].expand(3, 2))


def test_a_loss_of_shape_b_1_is_refused_instead_of_broadcast() -> None:
    trainer, _ = guest(lambda output, labels: squared(output, labels)[:, None], xi=60.0)
    with pytest.raises(ModelError, match=r"\[3\], got \[3, 1\]"):
        trainer.compute_derivatives(0, [activation(trainer, torch.ones(3, 2))])


def test_a_loss_that_returns_its_mean_is_refused() -> None:
    trainer, _ = guest(lambda output, labels: squared(output, labels).mean(), xi=60.0)
    with pytest.raises(ModelError, match="one value per instance"):
        trainer.compute_derivatives(0, [activation(trainer, torch.ones(3, 2))])


def test_the_binary_loss_accepts_an_output_of_shape_b_1() -> None:
    losses = celu.LOSSES["binary"].per_instance(torch.zeros(4, 1), torch.ones(4))
    assert losses.shape == (4,)


def test_a_bottom_with_the_wrong_output_width_is_refused() -> None:
    table = celu.Dataset({"x": X[:, :1]})
    trainer = HostTrainer("host", celu.Host(bottom=Scale([1.0]), train=table, test=table), job(R=1))
    with pytest.raises(ModelError, match=r"host: .* \[3, 2\] .* got \[3, 1\]"):
        trainer.compute_activation(0)


def test_a_top_that_ignores_a_host_is_refused() -> None:
    class IgnoresHost(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, z: Tensor) -> Tensor:
            return self.scale

    table = celu.Dataset({}, torch.zeros(3))
    trainer = GuestTrainer(
        "guest",
        celu.Guest(top=IgnoresHost(), loss=celu.Loss(squared), train=table, test=table),
        job(R=1),
    )
    with pytest.raises(ModelError, match="does not use Z of host"):
        trainer.compute_derivatives(0, [activation(trainer, torch.ones(3, 2))])


def test_each_role_uses_its_own_w_and_r() -> None:
    method = celu.Method(W={"guest": 4, "host": 2}, R={"guest": 3, "host": 2})
    fed = federation(method=method, rounds=30)
    host = HostTrainer("host", fed.hosts["host"], fed.job)
    guest_trainer = GuestTrainer("guest", fed.guest, fed.job)
    assert (host.workset.table.W, host.workset.table.R) == (2, 2)
    assert (guest_trainer.workset.table.W, guest_trainer.workset.table.R) == (4, 3)
    result = celu.simulate(fed.job, fed.guest, fed.hosts)
    # The guest has R - 1 = 2 steps per round, local steps or bubbles.
    assert result.local_steps + result.bubbles == 30 * 2


class NewestFirst:
    """A custom sampling policy: always the newest batch."""

    def choose(self, entries, step, W):  # type: ignore[no-untyped-def]
        return entries[-1] if entries else None


class HalfWeights:
    """A custom weighting policy: every instance counts half."""

    def __init__(self, xi_degrees: float) -> None:
        del xi_degrees

    def weigh_derivatives(self, stale: StaleDerivatives) -> Weights:
        half = torch.full((len(stale.dz_BD),), 0.5)
        return Weights(half, half)

    def weigh_losses(self, stale: StaleLosses) -> Weights:
        half = torch.full((len(stale.fresh_BD),), 0.5)
        return Weights(half, half)


@pytest.mark.parametrize("policy", [{"sampling": "NewestFirst"}, {"weighting": "HalfWeights"}])
def test_a_custom_policy_is_selected_by_name_in_the_contract(
    policy: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys
    import types

    module = types.ModuleType("custom_policies")
    module.NewestFirst, module.HalfWeights = NewestFirst, HalfWeights  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "custom_policies", module)
    named = {key: f"custom_policies:{value}" for key, value in policy.items()}
    custom = train_in_memory(federation(method=celu.Method(W=4, R=3, **named)))
    built_in = train_in_memory(federation(method=celu.Method(W=4, R=3)))
    assert any(not torch.equal(custom[name], built_in[name]) for name in custom)


def test_the_device_of_a_party_is_that_of_its_first_parameters() -> None:
    on_meta = nn.Linear(2, 1, device="meta")
    assert device_of([nn.ReLU(), on_meta]) == torch.device("meta")
    assert device_of([nn.ReLU()]) == torch.device("cpu")
