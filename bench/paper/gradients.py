"""Gradients of a batch: stale ones from cached Z and dZ, and the true one, computed jointly.

In the notation of the paper's section 4.1, for a party's own parameters: g~, which a local step
computes from cached statistics with weighting, and g, of the same batch at the same weights. The
paper bounds the cosine between the two from below by rho.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

import celu
from celu.data.dataset import Batch
from celu.workset.table import Entry
from celu.workset.weighting import StaleDerivatives, StaleLosses, Weights

Weigh = Callable[[StaleDerivatives | StaleLosses], Weights | None]


def host_gradient(bottom: nn.Module, entry: Entry, weigh: Weigh) -> Tensor:
    """The gradient of a host's local step, as one vector."""
    z_BD = bottom(**entry.batch.inputs)
    (stale_BD,), (dz_BD,) = entry.z, entry.dz
    weights = weigh(StaleDerivatives(z_BD.detach(), stale_BD, dz_BD, entry.curvature))
    dz_BD = dz_BD if weights is None else weights.weights_B[:, None] * dz_BD
    parameters = list(bottom.parameters())
    return _flat(torch.autograd.grad(z_BD, parameters, dz_BD))


def guest_gradient(guest: celu.Guest, entry: Entry, weigh: Weigh) -> Tensor:
    """The gradient of a guest's local step, as one vector."""
    leaves = [z_BD.detach().requires_grad_() for z_BD in entry.z]
    losses_B = _losses(guest, entry.batch, _output(guest, entry.batch, leaves))
    fresh = torch.autograd.grad(losses_B.mean(), leaves, retain_graph=True)
    weights = weigh(StaleLosses(torch.cat(fresh, dim=1), torch.cat(entry.dz, dim=1)))
    loss = (losses_B if weights is None else weights.weights_B * losses_B).mean()
    return _flat(torch.autograd.grad(loss, _parameters(guest)))


def joint_gradients(
    guest: celu.Guest, host: celu.Host, entries: dict[str, Entry]
) -> tuple[dict[str, Tensor], Tensor]:
    """The true gradients of a batch at the current weights, and the prediction bias on it."""
    batch = entries["guest"].batch
    output = _output(guest, batch, [host.bottom(**entries["host"].batch.inputs)])
    own, theirs = _parameters(guest), list(host.bottom.parameters())
    gradients = torch.autograd.grad(_losses(guest, batch, output).mean(), [*own, *theirs])
    by_party = {"guest": _flat(gradients[: len(own)]), "host": _flat(gradients[len(own) :])}
    return by_party, prediction_bias(guest, output, batch)


def prediction_bias(guest: celu.Guest, output: Tensor, batch: Batch) -> Tensor:
    """How much too high (positive) or too low the outputs are on average.

    The derivative of the mean loss with respect to a constant added to every output: for clicks,
    the mean predicted probability minus the share of clicks.
    """
    output = output.detach().requires_grad_()
    (derivative,) = torch.autograd.grad(_losses(guest, batch, output).mean(), output)
    return derivative.sum()


def _output(guest: celu.Guest, batch: Batch, z: list[Tensor]) -> Tensor:
    own = () if guest.bottom is None else (guest.bottom(**batch.inputs),)
    output: Tensor = guest.top(*own, *z)
    return output


def _losses(guest: celu.Guest, batch: Batch, output: Tensor) -> Tensor:
    assert batch.labels is not None
    losses_B: Tensor = guest.loss.per_instance(output, batch.labels)
    return losses_B


def _parameters(guest: celu.Guest) -> list[nn.Parameter]:
    own = [] if guest.bottom is None else list(guest.bottom.parameters())
    return [*own, *guest.top.parameters()]


def _flat(gradients: Iterable[Tensor]) -> Tensor:
    return torch.cat([(g.to_dense() if g.is_sparse else g).flatten() for g in gradients])


def cosine(a: Tensor, b: Tensor) -> float:
    """Cosine of the angle between two vectors; 0 if either is zero."""
    lengths = float(a.norm() * b.norm())
    return float(torch.dot(a, b)) / lengths if lengths else 0.0


def no_weights(stale: StaleDerivatives | StaleLosses) -> None:
    """Weigh no instance: for gradients without instance weighting."""
    del stale
