"""What a host holds of its rounds in flight: at most one autograd graph."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import torch
from torch import Tensor, nn

import celu
from celu.engine.guest_trainer import GuestTrainer
from celu.engine.host_trainer import HostTrainer
from federation import federation


class Counted(torch.autograd.Function):
    """The identity; its node holds an object for as long as the graph exists."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, held: Held) -> Tensor:
        ctx.held = held
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class Held:
    """An object that a weak reference can be made to."""


class CountingBottom(nn.Module):
    """A bottom that counts the autograd graphs of its outputs that are still held."""

    def __init__(self, bottom: nn.Module) -> None:
        super().__init__()
        self.bottom = bottom
        self._held: list[weakref.ref[Held]] = []

    def forward(self, **inputs: Tensor) -> Tensor:
        held = Held()
        self._held.append(weakref.ref(held))
        z_BD: Tensor = Counted.apply(self.bottom(**inputs), held)
        return z_BD

    def graphs(self) -> int:
        gc.collect()
        return sum(held() is not None for held in self._held)


def test_a_host_holds_one_autograd_graph_however_many_rounds_are_in_flight() -> None:
    depth = 6
    fed = federation(method=celu.Method(R=3, depth=depth))
    bottom = CountingBottom(fed.hosts["host"].bottom)
    dataset = fed.hosts["host"].train
    host = HostTrainer("host", celu.Host(bottom=bottom, train=dataset, test=dataset), fed.job)
    guest = GuestTrainer("guest", fed.guest, fed.job)
    sent = []
    for round_ in range(depth):
        sent.append(host.compute_activation(round_))
        assert bottom.graphs() == 1
    _, (derivative,) = guest.compute_derivatives(0, [sent[0]])
    host.update(0, derivative)
    assert bottom.graphs() == 0
    host.local_step()
    sent.append(host.compute_activation(depth))
    assert bottom.graphs() == 0
    for round_ in range(1, depth + 1):
        _, (derivative,) = guest.compute_derivatives(round_, [sent[round_]])
        host.update(round_, derivative)
    host.compute_activation(depth + 1)  # the only round in flight: its own update comes next
    assert bottom.graphs() == 1
    host.local_step()
    assert bottom.graphs() == 0
