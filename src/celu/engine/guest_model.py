"""The forward and backward pass of a guest's bottom and top."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from celu.data.dataset import Batch
from celu.errors import ModelError
from celu.models.user_code import call_bottom, call_top, name_of, user_code
from celu.ranks.buffers import BufferCheck
from celu.ranks.gradients import sum_dense
from celu.ranks.slices import ONE, GradientSum, Slices

Losses = Callable[[Batch, Tensor], Tensor]  # the loss of each row of a batch, from the output


@dataclass(frozen=True)
class GuestModel:
    """A bottom, if there is one, and a top that takes Z of these hosts; errors name the party."""

    party: str
    bottom: nn.Module | None
    top: nn.Module
    hosts: Sequence[str]
    slices: Slices = ONE

    @cached_property
    def modules(self) -> dict[str, nn.Module]:
        """The modules by name."""
        own = {} if self.bottom is None else {"bottom": self.bottom}
        return {**own, "top": self.top}

    def forward(self, inputs: Mapping[str, Tensor], z: Sequence[Tensor]) -> Tensor:
        """The top's output; raises ModelError."""
        own: tuple[Tensor, ...] = ()
        with BufferCheck(self.party, self.modules, self.slices).unchanged():
            if self.bottom is not None:
                own = (call_bottom(self.party, self.bottom, inputs),)
            return call_top(self.party, self.top, (*own, *z))

    def stand_in(self, batch: Batch, z: Sequence[Tensor], rows: int) -> None:
        """A forward pass for other ranks that may need it; see `Slices.stand_in`."""
        if (one := self.slices.stand_in(batch, rows)) is not None:
            self.forward(one.inputs, [z_BD.new_zeros(1, *z_BD.shape[1:]) for z_BD in z])

    @contextmanager
    def backward(self, leaves: Sequence[Tensor]) -> Iterator[None]:
        """A backward pass; what it raises becomes a ModelError."""
        with user_code(f"{self.party}: the backward pass of {name_of(self.top)}", leaves):
            yield

    def derivatives(self, leaves: Sequence[Tensor]) -> list[Tensor]:
        """dZ for each host, after a backward pass; raises ModelError for a Z that is not used."""
        found = []
        for leaf, host in zip(leaves, self.hosts, strict=True):
            if leaf.grad is None:
                raise ModelError(f"{self.party}: the top model does not use Z of {host}")
            found.append(leaf.grad.contiguous())
        return found

    def exchange(
        self,
        losses: Losses,
        gradients: GradientSum,
        rows: int,
        like: Batch,
        reseed: Callable[[int], None],
        *tensors: Tensor,
    ) -> list[Tensor]:
        """This process's part of the mean loss, the output, and dZ for each host.

        The tensors are those of a fresh batch of `rows` rows, like this one, and Z of each host.
        `gradients` then has those of the weights. Raises ModelError.
        """
        gradients.clear()
        whole, z = split_batch(like, tensors)
        means, found = [], []
        for part in self.slices.each(rows, reseed):
            batch = self.slices.part_of(whole, part)
            leaves = leaves_of([self.slices.part(z_BD, part) for z_BD in z])
            output = self.forward(batch.inputs, leaves)
            loss = self.slices.mean(losses(batch, output), rows)
            with self.backward(leaves):
                loss.backward()
            gradients.add()
            means.append(loss.detach())
            found.append([output.detach(), *self.derivatives(leaves)])
        return [sum_dense(means) if len(means) > 1 else means[0], *self.slices.join(found)]

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Put the modules in evaluation mode."""
        for module in self.modules.values():
            module.eval()
        yield
        for module in self.modules.values():
            module.train()


def leaves_of(z: Sequence[Tensor]) -> list[Tensor]:
    """Z as leaves of an autograd graph."""
    return [z_BD.detach().requires_grad_() for z_BD in z]


def split_batch(like: Batch, tensors: Sequence[Tensor]) -> tuple[Batch, Sequence[Tensor]]:
    """A batch like this one of the first tensors, and the others."""
    num = len(like.tensors())
    return like.with_tensors(tensors[:num]), tensors[num:]


def side_by_side(tensors: Sequence[Tensor]) -> Tensor:
    """The columns of all; a single tensor is not copied."""
    return tensors[0].contiguous() if len(tensors) == 1 else torch.cat([*tensors], dim=1)
